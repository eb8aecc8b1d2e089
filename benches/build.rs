//! Links ISA-L when parity is to be compared with it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_ISAL").is_some() {
        println!("cargo::rustc-link-lib=isal");
    }
}
