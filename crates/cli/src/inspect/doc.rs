//! What `varve inspect` has to say, once: as JSON for programs and as indented text and tables for people.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A value. The fields of a map keep their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doc {
    Nothing,
    Flag(bool),
    Number(i128),
    Text(String),
    List(Vec<Doc>),
    Map(Vec<(&'static str, Doc)>),
}

/// `map! { "key": value, ... }`
macro_rules! map {
    ($($key:literal: $value:expr),* $(,)?) => {
        $crate::inspect::doc::Doc::Map(vec![$(($key, $crate::inspect::doc::Doc::from($value))),*])
    };
}
pub(super) use map;

macro_rules! from_number {
    ($($type:ty),*) => {$(
        impl From<$type> for Doc {
            fn from(number: $type) -> Doc {
                Doc::Number(number as i128)
            }
        }
    )*};
}
from_number!(u8, u16, u32, u64, usize, i64);

impl From<bool> for Doc {
    fn from(flag: bool) -> Doc {
        Doc::Flag(flag)
    }
}

impl From<&str> for Doc {
    fn from(text: &str) -> Doc {
        Doc::Text(text.to_owned())
    }
}

impl From<String> for Doc {
    fn from(text: String) -> Doc {
        Doc::Text(text)
    }
}

impl From<Vec<Doc>> for Doc {
    fn from(list: Vec<Doc>) -> Doc {
        Doc::List(list)
    }
}

impl<T: Into<Doc>> From<Option<T>> for Doc {
    fn from(value: Option<T>) -> Doc {
        value.map_or(Doc::Nothing, Into::into)
    }
}

impl Doc {
    /// Bytes that are mostly text: names, attribute names.
    pub fn name(bytes: &[u8]) -> Doc {
        Doc::Text(crate::names::escape(bytes))
    }

    /// Bytes as hexadecimal digits.
    pub fn hex(bytes: &[u8]) -> Doc {
        Doc::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// An address or a checksum.
    pub fn address(number: u64) -> Doc {
        Doc::Text(format!("{number:#x}"))
    }

    /// Appends fields to a map.
    pub fn extend(&mut self, more: Doc) {
        if let (Doc::Map(fields), Doc::Map(more)) = (self, more) {
            fields.extend(more);
        }
    }

    /// A map without some of its fields.
    pub fn without(self, keys: &[&str]) -> Doc {
        match self {
            Doc::Map(fields) => Doc::Map(fields.into_iter().filter(|(key, _)| !keys.contains(key)).collect()),
            other => other,
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    /// In one line; `None` for what takes several.
    fn short(&self) -> Option<String> {
        Some(match self {
            Doc::Nothing => "-".to_owned(),
            Doc::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Doc::Number(number) => number.to_string(),
            Doc::Text(text) => text.clone(),
            Doc::List(list) if list.is_empty() => "none".to_owned(),
            Doc::List(list) => {
                let parts: Vec<String> = list
                    .iter()
                    .map(|doc| if matches!(doc, Doc::List(_) | Doc::Map(_)) { None } else { doc.short() })
                    .collect::<Option<_>>()?;
                parts.join(" ")
            }
            Doc::Map(_) => return None,
        })
    }

    fn write(&self, out: &mut String, indent: usize) {
        match self {
            Doc::Map(fields) => {
                let width = fields.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
                for (key, value) in fields {
                    let key = key.replace('_', " ");
                    match value.short() {
                        Some(text) => out.push_str(&format!("{:indent$}{key:width$}  {text}\n", "")),
                        None => {
                            out.push_str(&format!("{:indent$}{key}\n", ""));
                            value.write(out, indent + 2);
                        }
                    }
                }
            }
            Doc::List(list) => match table(list) {
                Some(rows) => {
                    for row in rows {
                        out.push_str(&format!("{:indent$}{}\n", "", row.trim_end()));
                    }
                }
                None => {
                    for (number, doc) in list.iter().enumerate() {
                        if number > 0 && matches!(doc, Doc::Map(_)) {
                            out.push('\n');
                        }
                        doc.write(out, indent);
                    }
                }
            },
            simple => {
                let text = simple.short().unwrap_or_default();
                out.push_str(&format!("{:indent$}{text}\n", ""));
            }
        }
    }
}

/// Lists of maps with the same, simple fields are shown as a table.
fn table(list: &[Doc]) -> Option<Vec<String>> {
    let Doc::Map(first) = list.first()? else { return None };
    let mut rows = vec![first.iter().map(|(key, _)| key.replace('_', " ")).collect::<Vec<String>>()];
    for doc in list {
        let Doc::Map(fields) = doc else { return None };
        if fields.len() != first.len() || fields.iter().zip(first).any(|((a, _), (b, _))| a != b) {
            return None;
        }
        rows.push(fields.iter().map(|(_, value)| value.short()).collect::<Option<_>>()?);
    }
    let widths: Vec<usize> = (0..first.len())
        .map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect::<String>()
    };
    Some(rows.iter().map(line).collect())
}

impl Serialize for Doc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Doc::Nothing => serializer.serialize_none(),
            Doc::Flag(flag) => serializer.serialize_bool(*flag),
            Doc::Number(number) => match u64::try_from(*number) {
                Ok(number) => serializer.serialize_u64(number),
                Err(_) => serializer.serialize_i64(i64::try_from(*number).unwrap_or(i64::MIN)),
            },
            Doc::Text(text) => serializer.serialize_str(text),
            Doc::List(list) => serializer.collect_seq(list),
            Doc::Map(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (key, value) in fields {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: both forms say the same, and a list of like maps becomes a table. Method: one of everything.
    #[test]
    fn both_forms() {
        let doc = map! {
            "first_key": 1u64,
            "list": vec![map! { "a": 1u64, "long_name": "x" }, map! { "a": 22u64, "long_name": true }],
            "before": -5i64,
            "nothing": None::<u64>,
            "inner": map! { "name": Doc::name(b"\xff") },
        };
        assert_eq!(
            serde_json::to_string(&doc).expect("it serializes"),
            r#"{"first_key":1,"list":[{"a":1,"long_name":"x"},{"a":22,"long_name":true}],"before":-5,"nothing":null,"inner":{"name":"\\xff"}}"#
        );
        let text = "first key  1\nlist\n  a   long name\n  1   x\n  22  yes\nbefore     -5\nnothing    -\ninner\n  name  \\xff\n";
        assert_eq!(doc.describe(), text);
    }
}
