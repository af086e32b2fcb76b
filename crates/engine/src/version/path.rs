//! The versions a holder sees, nearest first, each with the byte at which it stops being visible.
//!
//! The read rule of the design lives here and nowhere else: walking towards the root, what is visible of a version
//! ends at the smallest limit met before it.

use varve_format::record::version::{self, Drain, NO_LIMIT, VersionRecord};
use varve_format::{Corrupt, FamilyId, TreeId, VersionId, VersionKey};

use super::{Holder, Read, Result};
use crate::EngineError;

/// One version on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Its id.
    pub(super) id: VersionId,
    /// The key of its entries.
    pub(super) key: VersionKey,
    /// Its entries are visible below this byte of the file.
    pub(super) visible: u64,
}

/// The way from a holder's version to the root.
#[derive(Clone, Debug)]
pub struct Path {
    family: FamilyId,
    /// The only step, if `many` is empty: plain files allocate nothing.
    one: [Step; 1],
    many: Vec<Step>,
    drain: Drain,
    writable: bool,
}

impl Path {
    /// The path of a holder whose family has no version records. Costs no read and no allocation.
    pub fn implicit(holder: Holder) -> Path {
        debug_assert_eq!(holder.version.0, holder.family.0, "only a family's first version may be implicit");
        let step = Step { id: holder.version, key: VersionKey(holder.family.0), visible: NO_LIMIT };
        Path { family: holder.family, one: [step], many: Vec::new(), drain: Drain::None, writable: true }
    }

    /// The path of `holder`: one read a version, none when [`Holder::has_versions`] is false.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when a record is missing, or ids or keys do not grow along the path.
    pub fn load(read: &dyn Read, holder: Holder) -> Result<Path> {
        if !holder.has_versions && holder.version.0 == holder.family.0 {
            return Ok(Path::implicit(holder));
        }
        let family = holder.family;
        let head = record(read, family, holder.version)?;
        if head.key.0 > holder.version.0 {
            let why = Corrupt { what: "key that is younger than its version", at: 0 };
            return Err(EngineError::corrupt(
                format!("version {} of family {}", holder.version.0, family.0),
                why,
            ));
        }
        let mut path = Path {
            family,
            one: [Step { id: holder.version, key: head.key, visible: NO_LIMIT }],
            many: Vec::new(),
            drain: head.drain,
            writable: head.refs == 1 && head.children == 0,
        };
        let (mut version, mut limit) = (head, NO_LIMIT);
        while let Some(id) = version.parent {
            let last = path.steps()[path.steps().len() - 1];
            limit = if super::planted(super::Planted::LimitNotCarried) {
                version.limit
            } else {
                limit.min(version.limit)
            };
            version = record(read, family, id)?;
            // Strictly falling ids also bound this loop on hostile records.
            if id >= last.id || version.key >= last.key {
                let why = Corrupt { what: "version that is not younger than its parent", at: 0 };
                return Err(EngineError::corrupt(
                    format!("version {} of family {}", last.id.0, family.0),
                    why,
                ));
            }
            if path.many.is_empty() {
                path.many.push(path.one[0]);
            }
            path.many.push(Step { id, key: version.key, visible: limit });
        }
        Ok(path)
    }

    /// Whose data.
    pub fn family(&self) -> FamilyId {
        self.family
    }
    /// Versions on the path, the holder's included.
    pub fn versions(&self) -> usize {
        self.steps().len()
    }
    /// Whether the holder may write into its version. If not, it shares it, and opens a child first.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Nearest first; never empty.
    pub(super) fn steps(&self) -> &[Step] {
        if self.many.is_empty() { &self.one } else { &self.many }
    }
    /// How many steps from the first on a write deals with: while the head drains up, its parent's key takes the
    /// new entries, and the head's own must go.
    pub(super) fn own(&self) -> usize {
        if self.drain == Drain::Up { 2 } else { 1 }
    }
    /// The key that new entries get.
    pub(super) fn target(&self) -> VersionKey {
        self.steps()[self.own() - 1].key
    }
    /// How many steps from the first on belong to the holder alone, because the head and its parent are becoming one.
    pub(super) fn merging(&self) -> usize {
        if self.drain == Drain::None { 1 } else { 2 }
    }
    /// What is visible beyond the first `merging` steps now ends at `limit`.
    pub(super) fn lower(&mut self, limit: u64) {
        let merging = self.merging();
        for step in self.many.iter_mut().skip(merging) {
            step.visible = step.visible.min(limit);
        }
    }
    /// A new, empty version in front, which sees the others below `limit`.
    pub(super) fn open_child(&mut self, id: VersionId, limit: u64) {
        if self.many.is_empty() {
            self.many.push(self.one[0]);
        }
        for step in &mut self.many {
            step.visible = step.visible.min(limit);
        }
        self.many.insert(0, Step { id, key: VersionKey(id.0), visible: NO_LIMIT });
        (self.drain, self.writable) = (Drain::None, true);
    }
}

/// The record of a version; the implicit one of a family's first version if it has none.
pub(super) fn record(read: &dyn Read, family: FamilyId, id: VersionId) -> Result<VersionRecord> {
    let corrupt = |why| EngineError::corrupt(format!("version {} of family {}", id.0, family.0), why);
    match read.get(TreeId::VERSIONS, &version::encode_key(family, id))? {
        Some(value) => VersionRecord::decode(&value).map_err(corrupt),
        None if id.0 == family.0 => Ok(VersionRecord::implicit(family)),
        None => Err(corrupt(Corrupt { what: "version without a record", at: 0 })),
    }
}
