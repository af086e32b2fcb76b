//! `varve man` and `varve completions`: manual pages and shell completions, made from the table of commands in
//! [`crate::args`], so that they cannot say anything else than the program does.

use std::fs;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::Outcome;
use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::names::Shown;

/// Runs `varve man`.
pub fn man(args: &ManArgs) -> Result<Outcome> {
    let shown = args.dir.shown();
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {shown}"))?;
    clap_mangen::generate_to(called(table(), "varve".to_owned()), &args.dir)
        .with_context(|| format!("cannot write manual pages to {shown}"))?;
    Ok(Outcome::Done)
}

/// Runs `varve completions`.
pub fn completions(args: &CompletionsArgs) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut without_hidden(&table()), "varve", &mut script);
    crate::show(&String::from_utf8(script).context("the completions are not text")?)?;
    Ok(Outcome::Done)
}

/// The table, without the commands that only repeat what `--help` says.
fn table() -> clap::Command {
    Cli::command().disable_help_subcommand(true)
}

/// The table without what is hidden in it: some shells would offer that, too.
fn without_hidden(command: &clap::Command) -> clap::Command {
    // Some words, once: names have to live as long as the program.
    let kept = |text: &str| -> &'static str { text.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(without_hidden);
    let mut shown = clap::Command::new(kept(command.get_name()))
        .disable_help_subcommand(true)
        .args(arguments)
        .subcommands(below);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(kept(version)).propagate_version(true);
    }
    shown
}

/// Every command under the words it is called by: what comes between its name and that of a command below it, such as the
/// pool in `varve inspect POOL path`, is left out otherwise.
fn called(command: clap::Command, words: String) -> clap::Command {
    let mut above = words.clone();
    for operand in command.get_positionals().filter(|operand| operand.is_required_set()) {
        for name in operand.get_value_names().unwrap_or_default() {
            above.push_str(&format!(" <{name}>"));
        }
    }
    command.bin_name(words).mut_subcommands(|below| {
        let words = format!("{above} {}", below.get_name());
        called(below, words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(command: &clap::Command, look: &mut dyn FnMut(&clap::Command)) {
        if !command.is_hide_set() {
            look(command);
            command.get_subcommands().for_each(|below| each(below, look));
        }
    }

    // Goal: nothing in the table is unexplained. Method: every command and every argument has help that is a sentence
    // or a phrase, and no line of it is wider than a terminal likes.
    #[test]
    fn everything_is_explained() {
        let mut table = table();
        table.build();
        each(&table, &mut |command| {
            let name = command.get_name().to_owned();
            assert!(command.get_about().is_some_and(|about| !about.to_string().is_empty()), "{name}");
            for argument in command.get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 5, "{name} {}: {help:?}", argument.get_id());
                assert!(
                    !help.ends_with('.'),
                    "{name} {}: a phrase, not a sentence: {help:?}",
                    argument.get_id()
                );
            }
        });
    }

    // Goal: there is a page for every command, and a completion for every shell, and both know the options. Method:
    // make all of them.
    #[test]
    fn pages_and_completions_are_whole() {
        let dir = std::env::temp_dir().join(format!("varve-man-{}", std::process::id()));
        let args = ManArgs { dir: dir.clone() };
        man(&args).expect("pages are written");
        let mut pages = 0;
        for command in table().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = fs::read_to_string(dir.join(format!("varve-{}.1", command.get_name())));
            let page = page.unwrap_or_else(|error| panic!("{}: {error}", command.get_name()));
            for option in command.get_opts().filter(|option| !option.is_hide_set()) {
                let name = match option.get_long() {
                    Some(long) => format!("--{long}"),
                    None => format!("-{}", option.get_short().expect("every option has a name")),
                };
                assert!(page.contains(&name.replace('-', "\\-")), "{}: {name}", command.get_name());
            }
            pages += 1;
        }
        assert!(pages >= 12 && dir.join("varve.1").exists());
        // What is called by more than names says so.
        let page = fs::read_to_string(dir.join("varve-inspect-path.1"))
            .expect("there is a page of what can be inspected");
        assert!(page.contains("varve inspect <POOL> path"), "{page}");
        let page =
            fs::read_to_string(dir.join("varve-subvolume-list.1")).expect("there is a page of each verb");
        assert!(page.contains("varve subvolume list"), "{page}");
        fs::remove_dir_all(&dir).expect("our own directory");
        for shell in <clap_complete::Shell as clap::ValueEnum>::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut without_hidden(&table()), "varve", &mut script);
            let script = String::from_utf8(script).expect("text");
            for word in ["unmount", "inspect", "foreground", "superblock", "one-file-system"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
            for hidden in ["mount-helper", "daemon-child", "sloppy"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }
}
