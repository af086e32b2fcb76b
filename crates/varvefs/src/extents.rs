//! The map of a file.

use crate::error::Result;
use crate::file::File;

/// Pieces asked for at once.
const PAGE_PIECES: usize = 16 << 10;

/// What a piece of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExtentKind {
    /// Data in blocks of the pool.
    Data,
    /// Reads as zeros; space is set aside.
    Reserved,
    /// Reads as zeros.
    Hole,
    /// A small file's data, which lies beside its attributes.
    Inline,
}

/// A piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Extent {
    /// First byte of the file.
    pub offset: u64,
    /// Length in bytes. Data and reservations are whole blocks of 4096 bytes, also where the file ends within the last.
    pub len: u64,
    /// What it is.
    pub kind: ExtentKind,
    /// Where it is in the pool, in bytes, if it is data in blocks.
    pub address: Option<u64>,
    /// Whether another file, or the same in another subvolume, has the very same bytes of the pool, or this file has them in
    /// another place, too (that is where [`Extent::address`] comes again).
    pub shared: bool,
}

/// The extents of a file: an iterator, which [`File::extents`] gives. Nothing is held between two calls but a page of extents.
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    /// Where the next page begins.
    from: Option<u64>,
    page: std::vec::IntoIter<varve_fs::FilePiece>,
    /// The last one seen, which may go on in the next page.
    last: Option<Extent>,
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Result<Extent>> {
        loop {
            for piece in self.page.by_ref() {
                let next = extent(&piece);
                match &mut self.last {
                    Some(last) if continues(last, &next) => last.len += next.len,
                    last => {
                        if let Some(done) = last.replace(next) {
                            return Some(Ok(done));
                        }
                    }
                }
            }
            // After an error there is no more.
            let Some(from) = self.from.take() else { return self.last.take().map(Ok) };
            match self.file.map_page(from, PAGE_PIECES) {
                Ok(map) => (self.from, self.page) = (map.next, map.pieces.into_iter()),
                Err(error) => {
                    self.last = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

fn continues(last: &Extent, next: &Extent) -> bool {
    let follows = last.address.map(|address| address + last.len) == next.address;
    follows && (last.kind, last.shared) == (next.kind, next.shared)
}

fn extent(piece: &varve_fs::FilePiece) -> Extent {
    let kind = match piece.kind {
        varve_fs::PieceKind::Data => ExtentKind::Data,
        varve_fs::PieceKind::Reserved => ExtentKind::Reserved,
        varve_fs::PieceKind::Hole => ExtentKind::Hole,
        varve_fs::PieceKind::Inline => ExtentKind::Inline,
    };
    let varve_fs::FilePiece { offset, len, address, shared, .. } = *piece;
    Extent { offset, len, kind, address, shared }
}

impl File {
    /// Where the file is, from the block with the byte `from` on: its extents in order, without gaps, holes included. What
    /// waits in memory is written first (not synced); what is written meanwhile may be missed. [`Extent::shared`] is exact,
    /// but that what was deleted counts until its space has come back.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.write("/image", vec![7; 40960])?;
    /// fs.clone_file("/image", "/copy")?;
    /// let copy = varvefs::OpenOptions::new().read(true).write(true).open(&fs, "/copy")?;
    /// copy.write_all_at(&[8; 4096], 8192)?;
    /// let shared: Vec<_> = copy.extents(0).map(|extent| extent.map(|e| (e.len, e.shared))).collect::<Result<_, _>>()?;
    /// assert_eq!(shared, [(8192, true), (4096, false), (28672, true)]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn extents(&self, from: u64) -> Extents<'_> {
        Extents { file: self, from: Some(from), page: Vec::new().into_iter(), last: None }
    }

    fn map_page(&self, from: u64, pieces_max: usize) -> Result<varve_fs::FileMap> {
        self.run("map", |fs, ino| Ok(fs.map(ino, from, pieces_max)?))
    }
}
