//! The packages that are published: what a registry shows of each is there, and is the same for all.
//!
//! `scripts/package.sh` builds each crate from its package; this file reads only what they say.

use std::process::Command;

use serde_json::Value;

use crate::check;
use crate::source::{files_below, read, root};

/// Registries take no more keywords of a package.
const KEYWORDS_MAX: usize = 5;
const LICENCE_FILES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// The names of registries are for all; ours begin with this.
const PREFIX: &str = "siltstone";
/// The crates of this repository that an example of the package `siltstone` cannot name.
const INNER_CRATES: [&str; 6] =
    ["lsm_core::", "largeval::", "metahive::", "storage::", "testkit::", "tree::"];

/// The packages of the workspace as cargo reads them.
fn packages() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"]);
    let output = command.current_dir(root()).output().expect("cargo can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].take();
    packages.as_array().expect("metadata list packages").clone()
}

fn name_of(package: &Value) -> &str {
    package["name"].as_str().expect("a package has a name")
}

/// The folder of the package in the repository; empty for the root.
fn folder_of(package: &Value) -> String {
    let manifest = package["manifest_path"].as_str().expect("a package has a manifest");
    let folder = std::path::Path::new(manifest).parent().expect("a manifest is in a folder");
    let folder = folder.strip_prefix(root()).expect("the packages are in the repository");
    folder.to_str().expect("names of the repository are UTF-8").replace('\\', "/")
}

fn path_in(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") }
}

fn texts<'a>(package: &'a Value, key: &str) -> Vec<&'a str> {
    let list = package[key].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_str).collect()
}

/// The parts of the description that a registry shows and `package` lacks.
fn lacks(package: &Value) -> Vec<String> {
    let mut lacks = Vec::new();
    if !name_of(package).starts_with(PREFIX) {
        lacks.push(format!("is not called {PREFIX} or {PREFIX}-NAME"));
    }
    for key in ["description", "license", "rust_version"] {
        if package[key].as_str().is_none_or(str::is_empty) {
            lacks.push(format!("has no {key}"));
        }
    }
    if package["readme"].as_str() != Some("README.md") {
        lacks.push("has no README.md".to_owned());
    }
    if texts(package, "categories").is_empty() {
        lacks.push("has no categories".to_owned());
    }
    let keyword_count = texts(package, "keywords").len();
    if keyword_count == 0 || keyword_count > KEYWORDS_MAX {
        lacks.push(format!("has {keyword_count} keywords, not 1 to {KEYWORDS_MAX}"));
    }
    lacks
}

/// The features that documentation is built with: all that a user may turn on.
fn undocumented_features(package: &Value) -> Vec<String> {
    let features = package["features"].as_object().expect("a package has a table of features");
    let built = &package["metadata"]["docs"]["rs"]["features"];
    let built: Vec<&str> =
        built.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let wanted = features.keys().filter(|name| *name != "internals" && *name != "default");
    wanted.filter(|name| !built.contains(&name.as_str())).cloned().collect()
}

/// The rows of the table of features in `file`.
fn feature_rows(file: &str) -> Vec<String> {
    let text = read(file);
    let lines = text.lines().map(|line| line.trim_start_matches("//! "));
    let table = lines.skip_while(|line| *line != "| feature | adds |");
    table.take_while(|line| line.starts_with('|')).map(str::to_owned).collect()
}

#[test]
fn the_readme_and_the_page_of_the_crate_list_the_same_features() {
    let rows = feature_rows("src/lib.rs");
    assert_eq!(rows, feature_rows("README.md"));
    let packages = packages();
    let package = packages.iter().find(|package| name_of(package) == PREFIX);
    let features = package.expect("it is there")["features"].as_object().expect("it has features");
    for name in features.keys().filter(|name| *name != "internals") {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| `{name}` |"))), "{name}");
    }
}

#[test]
fn every_package_says_what_a_registry_shows() {
    let mut breaches = Vec::new();
    for package in packages() {
        let folder = folder_of(&package);
        let mut wrong = lacks(&package);
        for feature in undocumented_features(&package) {
            wrong.push(format!("does not document its feature {feature}"));
        }
        for file in LICENCE_FILES {
            if !root().join(path_in(&folder, file)).exists()
                || read(&path_in(&folder, file)) != read(file)
            {
                wrong.push(format!("has no {file}, or another one than the repository"));
            }
        }
        let readme = read(&path_in(&folder, "README.md"));
        if readme.lines().next() != Some(&format!("# {}", name_of(&package))) {
            wrong.push("has a README.md that does not begin with its name".to_owned());
        }
        let manifest = read(&path_in(&folder, "Cargo.toml"));
        if !manifest.lines().any(|line| line.starts_with("include = [\"/src\"")) {
            wrong.push("has no list of the files that are published".to_owned());
        }
        breaches.extend(
            wrong.iter().map(|what| format!("{}:1: {what}", path_in(&folder, "Cargo.toml"))),
        );
    }
    check(breaches);
}

/// The names that `line` gives to cargo as packages.
fn named_packages(line: &str) -> impl Iterator<Item = &str> {
    let words: Vec<&str> = line.split(|c: char| c.is_whitespace() || "()`\"".contains(c)).collect();
    let is_cargo =
        line.contains("cargo") || line.contains("crates=(") || line.contains("crates+=(");
    let pairs = words.windows(2).filter(|pair| is_cargo && ["-p", "--package"].contains(&pair[0]));
    pairs.map(|pair| pair[1]).collect::<Vec<_>>().into_iter()
}

#[test]
fn pages_and_scripts_name_packages_that_exist() {
    let packages = packages();
    let mut files = vec![".ci/run".to_owned()];
    for ending in [".md", ".sh", ".rs"] {
        files_below("", ending, &mut files);
    }
    let mut breaches = Vec::new();
    for file in files {
        // The changelog names packages as they were called; this file gives a wrong name on purpose.
        if file == "CHANGELOG.md" || file.ends_with("tidy/packages.rs") {
            continue;
        }
        for (number, line) in read(&file).lines().enumerate() {
            for name in named_packages(line) {
                if !packages.iter().any(|package| name_of(package) == name) {
                    breaches.push(format!("{file}:{}: there is no package {name}", number + 1));
                }
            }
        }
    }
    check(breaches);
}

#[test]
fn examples_of_the_engine_are_left_out_of_the_package() {
    let manifest = read("Cargo.toml");
    let mut examples = Vec::new();
    files_below("examples", ".rs", &mut examples);
    let mut breaches = Vec::new();
    for example in examples {
        let text = read(&example);
        let mut used = text.lines().filter_map(|line| line.strip_prefix("use "));
        let is_inner = used.any(|path| INNER_CRATES.iter().any(|name| path.starts_with(name)));
        let is_left_out = manifest.contains(&format!("\"!/{example}\""));
        if is_inner != is_left_out {
            breaches.push(format!(
                "{example}:1: uses a crate inside: {is_inner}, left out of the package: {is_left_out}"
            ));
        }
    }
    check(breaches);
}

#[test]
fn what_is_lacking_is_seen() {
    let package = serde_json::json!({
        "name": "core", "description": "", "license": "MIT", "readme": null, "keywords": [],
        "features": {"fast": [], "internals": []}, "metadata": null,
    });
    assert_eq!(lacks(&package).len(), 6, "{:?}", lacks(&package));
    assert_eq!(undocumented_features(&package), ["fast"]);
    let named: Vec<&str> =
        named_packages("cargo test -p one --lib && cargo run --package two").collect();
    assert_eq!(named, ["one", "two"]);
    assert_eq!(named_packages("mkdir -p folder").count(), 0);
}
