//! SPEC.md against the code: a row `| NAME | value | ... |` of its tables of constants must say what
//! `pub const NAME` in `crates/format` says.

use std::collections::BTreeMap;

use crate::tree::{Source, code_lines, text_of};

/// A constant's value as far as the specification can state it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u128),
    Bytes(String),
}

/// (errors, warnings): rows that disagree with the code or name nothing, and constants no row mentions.
pub fn problems(files: &[Source]) -> (Vec<String>, Vec<String>) {
    let code = constants(files);
    compare(&code, &rows(&text_of("SPEC.md")))
}

fn compare(code: &BTreeMap<String, Value>, rows: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let mut errors = Vec::new();
    for (name, stated) in rows {
        match (code.get(name), stated_value(stated)) {
            (None, _) => errors
                .push(format!("SPEC.md: {name} is no public constant with a plain value in crates/format")),
            (_, None) => errors.push(format!("SPEC.md: {name}: cannot read the value `{stated}`")),
            (Some(real), Some(said)) if *real != said => {
                errors.push(format!("SPEC.md: {name} is {said:?} there and {real:?} in the code"))
            }
            _ => {}
        }
    }
    let missing = code
        .keys()
        .filter(|name| !rows.iter().any(|(row, _)| row == *name))
        .map(|name| format!("SPEC.md does not state {name}"))
        .collect();
    (errors, missing)
}

/// Rows whose first cell is a constant's name in backquotes or bare, with the second cell.
fn rows(spec: &str) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for line in spec.lines() {
        let Some(inner) = line.trim().strip_prefix('|') else { continue };
        let cells: Vec<&str> = inner.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        if cells.len() >= 2 && is_constant_name(cells[0]) {
            rows.push((cells[0].to_owned(), cells[1].to_owned()));
        }
    }
    rows
}

fn is_constant_name(name: &str) -> bool {
    name.len() > 3
        && name.contains('_')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn stated_value(text: &str) -> Option<Value> {
    if let Some(quoted) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        return Some(Value::Bytes(quoted.to_owned()));
    }
    evaluate(text, &BTreeMap::new()).map(Value::Number)
}

/// Public constants of crates/format that have a plain number or byte string. They may refer to one another, in any
/// order, so reading goes on until a round finds no more.
fn constants(files: &[Source]) -> BTreeMap<String, Value> {
    let mut texts: Vec<(String, String)> = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("crates/format/src/") && file.is_product()) {
        let code: String =
            code_lines(&file.text).map(|(_, line)| line.trim().to_owned() + " ").collect::<Vec<_>>().concat();
        for piece in code.split("pub const ").skip(1) {
            let Some((head, rest)) = piece.split_once(':') else { continue };
            let Some((_, expression)) = rest.split_once('=') else { continue };
            let Some((expression, _)) = expression.split_once(';') else { continue };
            if is_constant_name(head) {
                texts.push((head.to_owned(), expression.trim().to_owned()));
            }
        }
    }
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    loop {
        let before = known.len();
        for (name, expression) in &texts {
            let bytes =
                expression.trim_start_matches('*').strip_prefix("b\"").and_then(|r| r.strip_suffix('"'));
            let value = match bytes {
                Some(bytes) => Some(Value::Bytes(bytes.to_owned())),
                None => evaluate(expression, &known).map(Value::Number),
            };
            if let Some(value) = value {
                known.insert(name.clone(), value);
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

/// Value of an expression of numbers, known names, casts, `+ - * / % << >> |` and parentheses.
fn evaluate(text: &str, known: &BTreeMap<String, Value>) -> Option<u128> {
    let tokens = tokens(text)?;
    let mut at = 0;
    let value = binary(&tokens, &mut at, 0, known)?;
    (at == tokens.len()).then_some(value)
}

fn tokens(text: &str) -> Option<Vec<String>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let len = if first.is_ascii_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len())
        } else if rest.starts_with("<<") || rest.starts_with(">>") {
            2
        } else if "+-*/%|()".contains(first) {
            1
        } else {
            return None;
        };
        tokens.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    Some(tokens)
}

const LEVELS: &[&[&str]] = &[&["|"], &["<<", ">>"], &["+", "-"], &["*", "/", "%"]];

fn binary(tokens: &[String], at: &mut usize, level: usize, known: &BTreeMap<String, Value>) -> Option<u128> {
    let Some(operators) = LEVELS.get(level) else { return atom(tokens, at, known) };
    let mut left = binary(tokens, at, level + 1, known)?;
    while let Some(operator) = tokens.get(*at).filter(|token| operators.contains(&token.as_str())) {
        *at += 1;
        let right = binary(tokens, at, level + 1, known)?;
        left = match operator.as_str() {
            "|" => left | right,
            "<<" => left.checked_shl(u32::try_from(right).ok()?)?,
            ">>" => left.checked_shr(u32::try_from(right).ok()?)?,
            "+" => left.checked_add(right)?,
            "-" => left.checked_sub(right)?,
            "*" => left.checked_mul(right)?,
            "/" => left.checked_div(right)?,
            _ => left.checked_rem(right)?,
        };
    }
    Some(left)
}

fn atom(tokens: &[String], at: &mut usize, known: &BTreeMap<String, Value>) -> Option<u128> {
    let token = tokens.get(*at)?;
    *at += 1;
    let value = if token == "(" {
        let inner = binary(tokens, at, 0, known)?;
        if tokens.get(*at)? != ")" {
            return None;
        }
        *at += 1;
        inner
    } else if token.starts_with(|c: char| c.is_ascii_digit()) {
        number(token)?
    } else {
        match (token.as_str(), known.get(token.rsplit("::").next()?)) {
            ("u64::MAX", _) => u64::MAX.into(),
            ("u32::MAX", _) => u32::MAX.into(),
            (_, Some(Value::Number(value))) => *value,
            _ => return None,
        }
    };
    // A cast changes no value that a specification would state.
    if tokens.get(*at).is_some_and(|token| token == "as") {
        *at += 2;
    }
    Some(value)
}

fn number(token: &str) -> Option<u128> {
    let mut digits = token.replace('_', "");
    for suffix in ["usize", "u128", "u64", "u32", "u16", "u8"] {
        if let Some(short) = digits.strip_suffix(suffix) {
            digits = short.to_owned();
            break;
        }
    }
    match digits.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wrong, missing or unknown constant is reported, a right one is not. Method: a small piece of source
    /// in every notation the code uses, against a table with one row of each kind.
    #[test]
    fn rows_are_compared_with_the_code() {
        let source = Source {
            path: "crates/format/src/lib.rs".to_owned(),
            text: "pub const BLOCK_SHIFT: u32 = 12;\n/// Bytes.\npub const BLOCK_BYTES: usize = 1 << BLOCK_SHIFT;\n\
                   pub const MAGIC_WORD: [u8; 8] = *b\"VARVEFS0\";\npub const RING_MIN: u64 = 8 * (1 << 20) as u64;\n\
                   pub const MASK_BITS: u64 = 0xff_ff;\npub const SUM_BYTES: usize = crate::BLOCK_BYTES - 96 / 2;\n"
                .to_owned(),
        };
        let code = constants(&[source]);
        let good = "| BLOCK_SHIFT | 12 |\n| `BLOCK_BYTES` | 4096 | bytes |\n| MAGIC_WORD | \"VARVEFS0\" |\n\
                    | RING_MIN | 8 << 20 |\n| MASK_BITS | 0xffff |\n| SUM_BYTES | 4_048 |\n| name | text |\n";
        assert_eq!(compare(&code, &rows(good)), (vec![], vec![]));
        let (errors, missing) = compare(&code, &rows("| BLOCK_BYTES | 8192 |\n| NO_SUCH | 1 |\n"));
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert_eq!(missing.len(), 5, "{missing:?}");
    }
}
