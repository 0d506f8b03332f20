// Checks histories of registers with porcupine, a checker of linearizability that shares no code with the one of this
// repository, and compares the verdicts. Usage: porcupine FOLDER. See crates/server/tests/it/histories.rs for the files.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A call on a register: a write of a value, or a read that returned it.
type call struct {
	key     string
	isWrite bool
	value   string
}

var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(call).key
			byKey[key] = append(byKey[key], operation)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() interface{} { return "0" },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		made := input.(call)
		if made.isWrite {
			return true, made.value
		}
		return state == output, state
	},
}

// Reads a file: the verdict of the other checker, and a call in each line.
func read(path string) (verdict string, history []porcupine.Operation, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if verdict == "" {
			verdict = lines.Text()
			continue
		}
		words := strings.Fields(lines.Text())
		if len(words) != 5 {
			return "", nil, fmt.Errorf("%s: no call: %q", path, lines.Text())
		}
		begun, err := strconv.ParseInt(words[3], 10, 64)
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", path, err)
		}
		// Without an outcome it may be done at any time.
		ended := int64(math.MaxInt64)
		if words[4] != "-" {
			if ended, err = strconv.ParseInt(words[4], 10, 64); err != nil {
				return "", nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		made := call{words[0], words[1] == "write", words[2]}
		history = append(history, porcupine.Operation{
			ClientId: len(history), Input: made, Output: made.value, Call: begun, Return: ended,
		})
	}
	return verdict, history, lines.Err()
}

func main() {
	paths, err := filepath.Glob(filepath.Join(os.Args[1], "*.history"))
	if err != nil || len(paths) == 0 {
		fmt.Fprintln(os.Stderr, "there are no histories in", os.Args[1])
		os.Exit(2)
	}
	verdicts := map[string]int{}
	calls, differing := 0, 0
	for _, path := range paths {
		expected, history, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		found := "undecided"
		switch porcupine.CheckOperationsTimeout(registers, history, time.Minute) {
		case porcupine.Ok:
			found = "linearizable"
		case porcupine.Illegal:
			found = "wrong"
		}
		verdicts[found]++
		calls += len(history)
		if found != expected {
			differing++
			fmt.Printf("%s: %s by porcupine, and %s by testkit::linear\n", path, found, expected)
		}
	}
	fmt.Printf("porcupine: %d histories with %d calls: %v, %d verdicts differ\n", len(paths), calls, verdicts, differing)
	if differing > 0 {
		os.Exit(1)
	}
}
