//! `cargo xtask check`: what no compiler checks.

use anyhow::{Result, bail};

use crate::text::Findings;
use crate::{layering, readme, spec, text, tree};

pub fn run() -> Result<()> {
    println!("== check");
    let Findings { mut errors, unfinished, warnings } = all()?;
    errors.extend(unfinished);
    for warning in &warnings {
        println!("warning: {warning}");
    }
    for error in &errors {
        println!("error: {error}");
    }
    println!("check: {} errors, {} warnings", errors.len(), warnings.len());
    if !errors.is_empty() {
        bail!("the project breaks its own rules");
    }
    Ok(())
}

/// What all the checks found.
fn all() -> Result<Findings> {
    let files = tree::tracked()?;
    let mut found = text::problems(&files);
    let (spec_errors, spec_warnings) = spec::problems(&files);
    found.errors.extend(layering::problems(&files));
    found.errors.extend(spec_errors);
    found.errors.extend(readme::problems());
    found.warnings.extend(spec_warnings);
    Ok(found)
}

#[cfg(test)]
mod tests {
    /// Goal: the tests fail where the layering, SPEC.md, the README or the rules of text are broken, without anybody
    /// running the gate. Method: the checks themselves, over the tracked files.
    #[test]
    fn the_project_keeps_its_own_rules() {
        let errors = super::all().expect("git lists the tracked files").errors;
        assert!(errors.is_empty(), "{}", errors.join("\n"));
    }
}
