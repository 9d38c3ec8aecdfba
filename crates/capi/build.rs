//! Exports only the functions of the C interface.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Dependencies have C functions, too, which rustc would export.
    if std::env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix")
        && std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor != "apple")
    {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
