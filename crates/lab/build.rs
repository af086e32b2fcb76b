//! Tells the lab which commit it was built from: every report names it.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn main() {
    // rustc links with lld, whose segments older valgrinds cannot find symbols in; the example `inprocess` is counted and
    // profiled with callgrind.
    println!("cargo:rustc-link-arg-examples=-fuse-ld=bfd");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).map_or_else(
        || "unknown (built outside a repository)".to_owned(),
        |commit| match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => commit,
            _ => format!("{commit} with changes"),
        },
    );
    println!("cargo::rustc-env=VARVE_LAB_COMMIT={commit}");
}
