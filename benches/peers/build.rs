//! Compiles the C file between the header of Berkeley DB and Rust.

#[cfg(feature = "berkeley")]
fn main() {
    let file = "src/engines/berkeley.c";
    println!("cargo::rerun-if-changed={file}");
    println!("cargo::rustc-link-lib=db");
    cc::Build::new().file(file).compile("siltstone_peers_berkeley");
}

#[cfg(not(feature = "berkeley"))]
fn main() {}
