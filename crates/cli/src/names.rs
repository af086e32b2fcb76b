//! Names as they are printed, in messages and in JSON: [`varve_format::text`] says how.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use varve_format::text::escape;

/// What has a name that is printed. `display` would print a newline in it as one, and lose what is not UTF-8.
pub trait Shown {
    /// The name as it is printed.
    fn shown(&self) -> String;
}

impl Shown for OsStr {
    fn shown(&self) -> String {
        escape(self.as_bytes())
    }
}

impl Shown for Path {
    fn shown(&self) -> String {
        self.as_os_str().shown()
    }
}

/// What the system says, for people who do not know its numbers.
pub fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "you may not look at it".to_owned(),
        io::ErrorKind::NotADirectory => "it is not a directory".to_owned(),
        io::ErrorKind::AlreadyExists => "there is something else with this name".to_owned(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

/// A sentence from elsewhere that may have names in it as they are: one line, whatever they are.
pub fn one_line(sentence: &str) -> String {
    let mut out = String::with_capacity(sentence.len());
    for c in sentence.chars() {
        if c.is_control() {
            out.push_str(&escape(c.encode_utf8(&mut [0; 4]).as_bytes()));
        } else {
            out.push(c);
        }
    }
    out
}
