//! The versions a holder sees, nearest first, each with the byte at which it stops being visible.
use super::*;
use varve_format::VersionKey;

/// The way from a holder's version to the root.
#[derive(Clone, Debug)]
pub struct Path {
    family: FamilyId,
    key: VersionKey,
}

impl Path {
    /// The path of a holder whose family has no version records. Costs no read and no allocation.
    pub fn implicit(holder: Holder) -> Path { unimplemented!() }
    /// The path of `holder`: one read a version, none when [`Holder::has_versions`] is false.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when a record is missing, or ids or keys do not grow along the path.
    pub fn load(read: &dyn Read, holder: Holder) -> Result<Path> { unimplemented!() }
}
