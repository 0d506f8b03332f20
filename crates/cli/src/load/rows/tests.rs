//! Rows of every shape, good and bad.

use super::*;

type Rows = Vec<(String, String)>;

fn columns(header: bool, key: &str, value: &str) -> Columns {
    Columns { header, key: key.to_owned(), value: value.to_owned() }
}

fn collect(
    read: impl FnOnce(&mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), ()>) -> Result<(), Stop<()>>,
) -> Result<Rows, Fault> {
    let mut rows = Vec::new();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let done = read(&mut |key, value| {
        rows.push((text(key), text(value)));
        Ok(())
    });
    match done {
        Ok(()) => Ok(rows),
        Err(Stop::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_table(is_csv: bool, columns: &Columns, text: &str, expected: Result<&[[&str; 2]], u64>) {
    let got = collect(|sink| each_table_row(text.as_bytes(), is_csv, columns, sink));
    match (got, expected) {
        (Ok(rows), Ok(expected)) => {
            let rows: Vec<[&str; 2]> =
                rows.iter().map(|(key, value)| [key.as_str(), value.as_str()]).collect();
            assert_eq!(rows, expected, "{text:?}");
        }
        (Err(fault), Err(line)) => assert_eq!(fault.line, line, "{text:?}: {fault:?}"),
        (got, expected) => panic!("{text:?}: {got:?} instead of {expected:?}"),
    }
}

#[test]
fn csv_rows_are_read_as_the_rfc_says() {
    let plain = columns(false, "1", "2");
    for (text, expected) in [
        ("", Ok(&[][..])),
        ("a,1\nb,2", Ok(&[["a", "1"], ["b", "2"]][..])),
        ("a,1\r\nb,\r\n", Ok(&[["a", "1"], ["b", ""]])),
        ("\"a,b\",\"say \"\"hi\"\"\"\n", Ok(&[["a,b", "say \"hi\""]])),
        ("\"a\r\nb\",\"\n\"\nc,3", Ok(&[["a\r\nb", "\n"], ["c", "3"]])),
        ("\"\",\"\"", Ok(&[["", ""]])),
        ("a,1,rest\n", Ok(&[["a", "1"]])),
        ("a,1\nb\n", Err(2)),
        ("a,1\n\n", Err(2)),
        ("a,\"1\nb,2\n", Err(1)),
        ("a,1\nb,2\"\n", Err(2)),
        ("\"a\" ,1\n", Err(1)),
        ("\"x\ny\",1\n\"a\"b,1", Err(3)),
    ] {
        check_table(true, &plain, text, expected);
    }
}

#[test]
fn columns_are_chosen_by_number_and_by_name() {
    let text = "id,name,city\n7,ada,london\n8,kurt,brno\n";
    let by_name = columns(true, "name", "id");
    check_table(true, &by_name, text, Ok(&[["ada", "7"], ["kurt", "8"]]));
    check_table(true, &columns(true, "3", "1"), text, Ok(&[["london", "7"], ["brno", "8"]]));
    check_table(true, &columns(true, "street", "1"), text, Err(1));
    check_table(true, &columns(false, "name", "1"), text, Err(1));
    check_table(true, &columns(false, "0", "1"), text, Err(1));
    check_table(true, &columns(false, "1", "4"), text, Err(1));
    let tsv = "k\tv\nkey, \"one\"\tvalue\\n\r\n\tempty key\n";
    let rows = &[["key, \"one\"", "value\\n"], ["", "empty key"]];
    check_table(false, &columns(true, "k", "v"), tsv, Ok(rows));
    check_table(false, &columns(false, "1", "2"), "a b\n", Err(1));
}

#[test]
fn json_lines_are_read_in_every_spelling() {
    let read = |text: &str| collect(|sink| each_json_line(text.as_bytes(), sink));
    let text = "{\"key\": \"a\", \"value\": \"\\u00e9\\n\"}\n\n\
                {\"value_hex\": \"3132\", \"key_base64\": \"YWI=\"}";
    let rows = [("a", "\u{e9}\n"), ("ab", "12")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(read(text), Ok(rows.to_vec()));
    for wrong in [
        "{\"key\": \"a\"}",
        "{\"key\": \"a\", \"value\": 1}",
        "{\"key\": \"a\", \"value\": \"1\", \"more\": \"2\"}",
        "{\"key\": \"a\", \"key_hex\": \"61\", \"value\": \"1\"}",
        "{\"key_hex\": \"6\", \"value\": \"1\"}",
        "{\"key_base64\": \"YW\", \"value\": \"1\"}",
        "[\"a\", \"1\"]",
        "{\"key\": ",
    ] {
        let text = format!("{{\"key\":\"k\",\"value\":\"v\"}}\n{wrong}\n");
        assert_eq!(read(&text).unwrap_err().line, 2, "{wrong}");
    }
}
