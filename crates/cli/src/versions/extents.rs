//! `varve extents`: the map of a file, in a mounted pool or in one that is not.
//!
//! It comes in pages, each a request of its own, and is printed as it comes: whoever stops the command stops the work.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use varve_fs::{DataSums, ExtentSums, FilePiece, Filesystem, InodeId, PieceKind, RecoveryReport};

use super::{Found, Request, args::ExtentsArgs, find, line_of};
use crate::names::Shown;
use crate::{Outcome, pool, sync};

/// Pieces in a page.
const PAGE_PIECES: usize = 8192;
/// Most that a page from elsewhere may ask for.
pub const PAGE_PIECES_MAX: usize = 1 << 16;

/// A piece on its way between the process that serves a mount and the command: offset, length, kind, address, shared, and how
/// many extents name it.
type Sent = (u64, u64, char, Option<u64>, bool, u64);

/// A page on its way.
#[derive(Serialize, Deserialize)]
pub struct Page {
    pieces: Vec<Sent>,
    next: Option<u64>,
    size: u64,
    /// What is lost, so that this is without what came last.
    #[serde(default)]
    pub log_ended_reason: Option<String>,
}

/// The page of a file's map that begins at `from`.
pub fn page(
    filesystem: &Filesystem,
    inode: InodeId,
    from: u64,
    pieces_max: usize,
) -> Result<Page, varve_fs::FsError> {
    let map = filesystem.map(inode, from, pieces_max.min(PAGE_PIECES_MAX))?;
    let kind = |kind| match kind {
        PieceKind::Data => 'd',
        PieceKind::Reserved => 'r',
        PieceKind::Hole => 'h',
        PieceKind::Inline => 'i',
    };
    let sent = |p: &FilePiece| (p.offset, p.len, kind(p.kind), p.address, p.shared, p.names);
    let pieces = map.pieces.iter().map(sent).collect();
    Ok(Page { pieces, next: map.next, size: map.size, log_ended_reason: None })
}

/// Runs the command.
pub fn run(args: &ExtentsArgs) -> Result<Outcome> {
    let path = Path::new(&args.file);
    let cannot = || format!("cannot show the extents of {}", path.shown());
    let (inode, source) = open(args).with_context(cannot)?;
    let mut output = BufWriter::new(io::stdout().lock());
    let data = ExtentSums::default();
    let log_ended_reason = match &source {
        Source::Pool(pool) => pool.1.replay_ended_by.clone(),
        // It says so with each page.
        Source::Mounted { .. } => None,
    };
    let mut printer =
        Printer { args, inode, log_ended_reason, pieces: 0, last: None, totals: Totals::default(), data };
    let pages = |from| source.page(inode, from);
    match printer.run(&mut output, &pages).and_then(|()| Ok(output.flush()?)) {
        // Somebody has seen enough (`| head`).
        Err(error)
            if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => {}
        result => result.with_context(cannot)?,
    }
    let log_ended_reason = printer.log_ended_reason.as_deref();
    Ok(match &source {
        Source::Pool(pool) => pool::outcome(&pool.1),
        Source::Mounted { held, .. } => pool::outcome_of_mount(&held.mount, "extents", log_ended_reason),
    })
}

/// Where the pages come from.
enum Source {
    /// As long as something in it is held open, no other mount gets the number of its device.
    Mounted {
        server: sync::Server,
        held: Box<Found>,
    },
    Pool(Box<(Filesystem, RecoveryReport)>),
}

/// The file: a path in a mount if there is something, else POOL:/PATH.
fn open(args: &ExtentsArgs) -> Result<(u64, Source)> {
    let path = Path::new(&args.file);
    match super::unmounted(&args.file)? {
        Some(place) => {
            let (filesystem, recovery) = pool::open_read_only(&pool::resolve(&place.pool)?, "extents")?;
            let inode = super::walk(&filesystem, &place)?;
            if filesystem.getattr(inode)?.kind != varve_fs::FileKind::File {
                bail!("it is not a regular file; only those have extents");
            }
            Ok((inode.0, Source::Pool(Box::new((filesystem, recovery)))))
        }
        None => {
            let found = find(path)?;
            if !found.metadata.is_file() {
                bail!("it is not a regular file; only those have extents");
            }
            let server = sync::Server::of(&found.mount);
            Ok((found.number(), Source::Mounted { server, held: Box::new(found) }))
        }
    }
}

impl Source {
    fn page(&self, inode: u64, from: u64) -> Result<Page> {
        match self {
            Source::Pool(pool) => Ok(page(&pool.0, InodeId(inode), from, PAGE_PIECES)?),
            Source::Mounted { server, .. } => {
                let request = Request::Extents { inode, from, limit: PAGE_PIECES };
                serde_json::from_value(server.request(&line_of(&request)?)?)
                    .context("this mount is served by another version of varve")
            }
        }
    }
}

/// Sums over all pieces, printed or not.
#[derive(Default)]
struct Totals {
    extents: u64,
    inline: u64,
    reserved: u64,
    holes: u64,
    hole_bytes: u64,
}

struct Printer<'a> {
    args: &'a ExtentsArgs,
    inode: u64,
    /// Why the pool is shown without what came last, if it is.
    log_ended_reason: Option<String>,
    /// Printed so far.
    pieces: u64,
    /// The last one seen: it may go on in the next page.
    last: Option<Sent>,
    totals: Totals,
    data: ExtentSums,
}

impl Printer<'_> {
    fn run(&mut self, output: &mut dyn Write, pages: &dyn Fn(u64) -> Result<Page>) -> Result<()> {
        let mut from = Some(0);
        let mut size = 0;
        while let Some(at) = from {
            let page = match pages(at) {
                Err(error) if at > 0 => {
                    // What is known is to be read, and the reason why there is no more of it.
                    if let Some(last) = self.last.take() {
                        self.print(output, last)?;
                    }
                    if self.args.json {
                        let said = serde_json::to_string(&format!("{error:#}"))?;
                        writeln!(output, "\n],\"error\":{said}}}")?;
                    }
                    return Err(error);
                }
                page => page?,
            };
            if at == 0 {
                self.begin(output)?;
            }
            (from, size) = (page.next, page.size);
            self.log_ended_reason = page.log_ended_reason.or(self.log_ended_reason.take());
            for piece in page.pieces {
                self.add(output, piece)?;
            }
        }
        if let Some(last) = self.last.take() {
            self.print(output, last)?;
        }
        self.end(output, size)
    }

    fn add(&mut self, output: &mut dyn Write, next: Sent) -> Result<()> {
        if next.2 == 'd' {
            let (offset, len, _, address, shared, names) = next;
            self.data.add(&FilePiece { offset, len, kind: PieceKind::Data, address, shared, names });
        }
        if let Some(last) = &mut self.last {
            let follows = last.3.map(|address| address + last.1) == next.3;
            if follows && (last.2, last.4) == (next.2, next.4) {
                last.1 += next.1;
                return Ok(());
            }
        }
        match self.last.replace(next) {
            Some(done) => self.print(output, done),
            None => Ok(()),
        }
    }

    fn begin(&self, output: &mut dyn Write) -> Result<()> {
        if self.args.json {
            let path = serde_json::to_string(&self.args.file.shown())?;
            write!(
                output,
                "{{\"path\":{path},\"inode\":{},\"extents\":[",
                varve_fs::shown_number(InodeId(self.inode))
            )?;
        } else {
            writeln!(output, "{:>16} {:>14}  {:<9} {:<6}  ADDRESS", "OFFSET", "BYTES", "KIND", "SHARED")?;
        }
        Ok(())
    }

    fn print(&mut self, output: &mut dyn Write, piece: Sent) -> Result<()> {
        let (offset, len, kind, address, shared, _) = piece;
        let totals = &mut self.totals;
        let kind = match kind {
            'h' => {
                totals.holes += 1;
                totals.hole_bytes += len;
                "hole"
            }
            'r' => {
                totals.reserved += len;
                "reserved"
            }
            'i' => {
                totals.inline += len;
                "inline"
            }
            _ => {
                totals.extents += 1;
                "data"
            }
        };
        if self.args.shared && !shared {
            return Ok(());
        }
        self.pieces += 1;
        if self.args.json {
            let comma = if self.pieces > 1 { "," } else { "" };
            let extent = json!({
                "offset_bytes": offset,
                "len_bytes": len,
                "kind": kind,
                "address_bytes": address,
                "shared": shared,
            });
            write!(output, "{comma}\n{extent}")?;
        } else {
            let address = address.map_or_else(|| "-".to_owned(), |address| format!("{address:#x}"));
            let shared = if shared { "yes" } else { "-" };
            writeln!(output, "{offset:>16} {len:>14}  {kind:<9} {shared:<6}  {address}")?;
        }
        Ok(())
    }

    fn end(&mut self, output: &mut dyn Write, size: u64) -> Result<()> {
        let Totals { extents, inline, reserved, holes, hole_bytes } = self.totals;
        let DataSums { data, shared, exclusive, repeated } = std::mem::take(&mut self.data).finish();
        if self.args.json {
            let totals = json!({
                "size_bytes": size,
                "data_count": extents,
                "data_bytes": data,
                "shared_bytes": shared,
                "exclusive_bytes": exclusive,
                "repeated_bytes": repeated,
                "inline_bytes": inline,
                "reserved_bytes": reserved,
                "hole_count": holes,
                "hole_bytes": hole_bytes,
            });
            let ended = serde_json::to_string(&self.log_ended_reason)?;
            writeln!(output, "\n],\"totals\":{totals},\"log_ended_reason\":{ended}}}")?;
        } else {
            let again = match repeated {
                0 => String::new(),
                bytes => format!(" ({bytes} more bytes of it lie in the same blocks)"),
            };
            writeln!(
                output,
                "{extents} extents with {data} bytes of data{again}: {shared} shared, {exclusive} this file's alone; \
                 {inline} bytes inline, {reserved} reserved, {holes} holes with {hole_bytes}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    // Goal: a map that cannot be shown to its end shows all that was seen of it. Method: two pieces in a first page, of which the second may go on,
    // and a second page that fails; as text and as JSON.
    #[test]
    fn what_was_seen_before_an_error_is_printed() {
        let printed = |json: bool| {
            let args = ExtentsArgs { file: "file".into(), shared: false, json };
            let (data, totals) = (ExtentSums::default(), Totals::default());
            let mut printer = Printer {
                args: &args,
                inode: 7,
                log_ended_reason: None,
                pieces: 0,
                last: None,
                totals,
                data,
            };
            let pages = |from| match from {
                0 => {
                    let pieces =
                        vec![(0, 4096, 'd', Some(1 << 20), false, 1), (4096, 8192, 'h', None, false, 0)];
                    Ok(Page { pieces, next: Some(12288), size: 1 << 20, log_ended_reason: None })
                }
                _ => bail!("it cannot be read"),
            };
            let mut output = Vec::new();
            let error = printer.run(&mut output, &pages).expect_err("the second page fails");
            assert_eq!(error.to_string(), "it cannot be read");
            String::from_utf8(output).expect("text")
        };
        let text = printed(false);
        let last = text.lines().last().expect("lines");
        assert!(text.lines().count() == 3 && last.contains("8192") && last.contains("hole"), "{text}");
        let json: Value = serde_json::from_str(&printed(true)).expect("JSON");
        assert_eq!(json["extents"].as_array().map(Vec::len), Some(2), "{json}");
        assert_eq!(
            (&json["extents"][1]["len_bytes"], &json["error"]),
            (&json!(8192), &json!("it cannot be read"))
        );
    }
}
