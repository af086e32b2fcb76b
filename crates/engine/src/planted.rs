//! Bugs that can be planted on purpose, so that the crash suite can show that it finds them.
//!
//! The places that guard a promise ask [`is`] whether their guard is to be left out. Without the feature `planted`
//! the answer is the constant `false` and the question costs nothing; the feature is switched on by the
//! dev-dependencies of the torture crate alone, so that a program built for use does not contain it. The setting
//! belongs to a thread: stores opened with `background: false` do all their work on the caller's thread, and tests
//! on other threads are not disturbed.

/// A known bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Planted {
    /// A commit reports its batch durable without having flushed the device.
    MissingFlush,
    /// Unlinking an open file leaves out its orphan record: after a crash nobody deletes it.
    LostOrphan,
    /// Freed blocks become allocatable at once, not when the record that frees them is durable.
    EarlyReuse,
    /// Recovery does not verify the data that rode with the unflushed tail of the log.
    UnverifiedTail,
    /// Recovery stops at the first batch whose data does not verify, though a later batch freed that data.
    FirstMismatch,
    /// Opening takes the superblock slot of the highest generation without looking at its checksum.
    TornSuperblock,
    /// Recovery does not write the cut and the new epoch: the next recovery may see the batches it had cut.
    RevivedBatch,
    /// A flush counts by itself, whatever becomes of those that began before it.
    FlushAlone,
    /// Recovery looks for leftovers of unfinished batches only where the next batch goes.
    LeftoverRevived,
    /// A checkpoint's superblock is written before the log is durable up to the checkpoint's position.
    CheckpointAhead,
    /// A reservation is given back in one step and what was used is taken in another.
    TwoStepRefund,
    /// A version gets one more holder and does not count it.
    MissedReference,
    /// A collapse removes a block in front of the child's limit, which is still seen.
    KillsVisible,
    /// The cursor of an interrupted removal passes what it stopped at.
    CursorSkips,
    /// Reading applies only the nearest limit of a path of versions.
    LimitNotCarried,
    /// A collapse leaves the entries beyond the child's limit behind.
    NoRangeKill,
    /// The end of a collapse does not have the versions around it looked at again.
    NoRecheck,
    /// A write that hides data from its last viewer does not say so.
    WriteForgets,
    /// The index does not hear of a version's first entry in a segment.
    IndexForgets,
    /// Of versions that become one together, the oldest hides the others.
    OldestOnTop,
    /// Versions become one together though there is a limit between them.
    LimitInRow,
    /// The record of a version with one holder goes, whatever else it says.
    HeldOnceForgotten,
    /// A keyframe stays when what it is made of changes.
    KeyframesStay,
    /// An extent that names blocks of another is not counted.
    ShareUncounted,
    /// The count of extents that name a block is never lowered.
    CountStays,
    /// Nobody notes which record a change hides from a version without holders.
    HiddenNotNoted,
    /// Whiteouts stay when what they hid has gone.
    WhiteoutsStay,
    /// Nobody hears of records that were hidden in a version that collapses.
    HiddenUnheard,
    /// Data that was dirty when a snapshot was taken is overwritten in place.
    FrozenOverwritten,
    /// Recovery does not flush the part of the log that it counts before it says so.
    TailUnflushed,
    /// Opening a pool that was closed does not flush what a process that was killed meanwhile has left.
    CleanUnflushed,
    /// A commit of what later changes have overtaken does not wait for it.
    OvertakenUnflushed,
    /// Ranges are shared when the first half of them has been compared.
    HalfCompared,
    /// A sync logs no access times.
    AccessesForgotten,
    /// A range is shared while data of the source waits in memory.
    SourceWaits,
    /// A file that gets the end of another does not remember what lies behind that in its last block.
    TailForgotten,
    /// A trim discards nodes that the present state has replaced and the durable checkpoint refers to.
    TrimsCheckpoint,
    /// Recovery takes a batch that it fails to read for the end of the log.
    UnreadEnds,
    /// Data that the device fails to read is taken for zeros.
    UnreadZeros,
    /// Zeros that are written over on a full pool are not logged when that is told.
    ZerosUnlogged,
    /// Of a range that is shared up to where something could not be read, the rest is told as shared, too.
    RestAssumed,
    /// What was set aside for zeros is nobody's when something could not be read before they are there.
    SpaceForgotten,
    /// A file without a name that could not be read when its last handle ended is left to nobody.
    LetGoForgotten,
}

impl Planted {
    /// Every bug of the control.
    pub const ALL: [Planted; 43] = [
        Planted::MissingFlush,
        Planted::LostOrphan,
        Planted::EarlyReuse,
        Planted::UnverifiedTail,
        Planted::FirstMismatch,
        Planted::TornSuperblock,
        Planted::RevivedBatch,
        Planted::FlushAlone,
        Planted::LeftoverRevived,
        Planted::CheckpointAhead,
        Planted::TwoStepRefund,
        Planted::MissedReference,
        Planted::KillsVisible,
        Planted::CursorSkips,
        Planted::LimitNotCarried,
        Planted::NoRangeKill,
        Planted::NoRecheck,
        Planted::WriteForgets,
        Planted::IndexForgets,
        Planted::OldestOnTop,
        Planted::LimitInRow,
        Planted::HeldOnceForgotten,
        Planted::KeyframesStay,
        Planted::ShareUncounted,
        Planted::CountStays,
        Planted::HiddenNotNoted,
        Planted::WhiteoutsStay,
        Planted::HiddenUnheard,
        Planted::FrozenOverwritten,
        Planted::TrimsCheckpoint,
        Planted::TailUnflushed,
        Planted::CleanUnflushed,
        Planted::OvertakenUnflushed,
        Planted::HalfCompared,
        Planted::AccessesForgotten,
        Planted::SourceWaits,
        Planted::TailForgotten,
        Planted::UnreadEnds,
        Planted::UnreadZeros,
        Planted::ZerosUnlogged,
        Planted::RestAssumed,
        Planted::SpaceForgotten,
        Planted::LetGoForgotten,
    ];
}

#[cfg(feature = "planted")]
mod active {
    use std::cell::Cell;

    use super::Planted;

    thread_local! {
        static CURRENT: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Plants `bug` (or none) in what this thread does from now on.
    pub fn set(bug: Option<Planted>) {
        CURRENT.set(bug);
    }

    /// Whether `bug` is planted in this thread.
    #[inline]
    pub fn is(bug: Planted) -> bool {
        CURRENT.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub use active::{is, set};

/// Whether `bug` is planted in this thread: never, in a program built without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Planted) -> bool {
    false
}
