//! How names are written for people and in JSON: whatever bytes they consist of, one name is one text, and no text is two
//! names.
//!
//! UTF-8 is written as it is. A backslash is `\\`, a double quote `\"`, a newline `\n`, a carriage return `\r`, a tabulator `\t`.
//! Every other byte of what is not UTF-8, or is no character that can be seen (control characters, and those that change the direction
//! of what follows or begin a line), is `\xff` in two digits. So is a space (`\x20`) at either end of the text, beside another one, and
//! beside a slash: what is written around names, such as ` -> `, cannot come from them. `printf %b` of a shell undoes it.

use std::fmt::Write;

/// The text that stands for a name, a path or an attribute's name. See the module.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let len = c.len_utf8();
            match c {
                '\\' | '"' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                ' ' if is_edge(bytes, at) => out.push_str("\\x20"),
                c if c.is_control() || is_unseen(c) => hex(&mut out, &bytes[at..at + len]),
                c => out.push(c),
            }
            at += len;
        }
        hex(&mut out, chunk.invalid());
        at += chunk.invalid().len();
    }
    out
}

fn hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// Whether what is before or behind the space at `at` is nothing, another space or a slash.
fn is_edge(bytes: &[u8], at: usize) -> bool {
    let edge = |byte: Option<&u8>| byte.is_none_or(|byte| matches!(byte, b' ' | b'/'));
    edge(at.checked_sub(1).and_then(|before| bytes.get(before))) || edge(bytes.get(at + 1))
}

/// Line and paragraph separators, marks of direction, and a byte order mark.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The bytes that `text` stands for.
    fn unescape(text: &str) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), text.as_bytes());
        while let [first, more @ ..] = rest {
            (rest, _) = match (first, more) {
                (b'\\', [b'x', digits @ ..]) => {
                    let pair = std::str::from_utf8(&digits[..2]).unwrap();
                    (&digits[2..], out.push(u8::from_str_radix(pair, 16).unwrap()))
                }
                (b'\\', [b'n', more @ ..]) => (more, out.push(b'\n')),
                (b'\\', [b'r', more @ ..]) => (more, out.push(b'\r')),
                (b'\\', [b't', more @ ..]) => (more, out.push(b'\t')),
                (b'\\', [other, more @ ..]) => (more, out.push(*other)),
                (other, more) => (more, out.push(*other)),
            };
        }
        out
    }

    // Goal: names that people give stay as they are, and what could be taken for something else does not. Method: one of each.
    #[test]
    fn names_are_written_plainly() {
        for (bytes, text) in [
            (&b"/projects/My Clay.txt"[..], "/projects/My Clay.txt"),
            ("/b\u{fc}cher/\u{65e5}\u{672c}/e\u{301}".as_bytes(), "/b\u{fc}cher/\u{65e5}\u{672c}/e\u{301}"),
            (b"", ""),
            (b"a\nb", "a\\nb"),
            (b"a\\nb", "a\\\\nb"),
            (b"\x1b[2J\r\t", "\\x1b[2J\\r\\t"),
            (b"\xff\xc3", "\\xff\\xc3"),
            (b"a\xffb", "a\\xffb"),
            ("\u{202e}txt".as_bytes(), "\\xe2\\x80\\xaetxt"),
            ("\u{85}".as_bytes(), "\\xc2\\x85"),
            (b" a  b ", "\\x20a\\x20\\x20b\\x20"),
            (b"/a -> /b", "/a ->\\x20/b"),
            (b"say \"no\"", "say \\\"no\\\""),
        ] {
            assert_eq!(escape(bytes), text);
        }
    }

    // Goal: the text says which bytes, always, and has nothing in it that a terminal or a reader of lines would take for
    // something else. Method: all short strings of bytes that are apt to be confused, and all single bytes and pairs.
    #[test]
    fn one_name_is_one_text() {
        let odd = [b'\\', b'n', b'x', b'2', b'0', b' ', b'/', b'\n', b'"', 0xff, 0xc3, 0xa4, 0x1b];
        let mut seen: HashMap<String, Vec<u8>> = HashMap::new();
        let mut look = |bytes: Vec<u8>| {
            let text = escape(&bytes);
            assert_eq!(unescape(&text), bytes, "{text}");
            assert!(!text.chars().any(char::is_control) && !text.contains("  "), "{text:?}");
            let before = seen.insert(text.clone(), bytes.clone());
            assert!(before.is_none_or(|before| before == bytes), "{text} is two names");
        };
        for n in 0..=u16::MAX {
            look(n.to_be_bytes().to_vec());
        }
        for n in 0..odd.len().pow(4) {
            look((0..4).map(|at| odd[n / odd.len().pow(at) % odd.len()]).collect());
        }
    }
}
