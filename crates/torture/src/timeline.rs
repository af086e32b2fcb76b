//! What the filesystem must be after a crash, by place in the log, and what had been promised by when.
//!
//! Filled by a [`crate::session::Session`] from the calls made; asked by the oracle. Places in the log grow.

use varve_fs::InodeId;

use crate::call::Call;
use crate::model::Model;

/// Expected states by log position, and acknowledgements by device event.
pub struct Timeline {
    /// From this position on (until the next entry) one of these states is right. Nearly always there is one.
    states: Vec<(u64, Vec<Model>)>,
    marks: Vec<Mark>,
    /// The position before each call, the call, and the inode it created (0: none).
    calls: Vec<(u64, Call, InodeId)>,
}

/// What was true when a call returned.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Device events (writes, flushes) issued by then.
    pub events: usize,
    /// Place in the log of the last change.
    pub position: u64,
    /// Everything up to here has been promised to survive.
    pub acknowledged: u64,
}

impl Timeline {
    /// Starts with `model`, right from `position` on, promised.
    pub fn new(position: u64, model: Model, events: usize) -> Self {
        Timeline {
            states: vec![(position, vec![model])],
            marks: vec![Mark { events, position, acknowledged: position }],
            calls: Vec::new(),
        }
    }

    /// From `position` on one of `models` is right.
    pub fn expect(&mut self, position: u64, models: Vec<Model>) {
        match self.states.last_mut() {
            Some((last, states)) if *last == position => *states = models,
            _ => self.states.push((position, models)),
        }
    }

    /// A call has returned.
    pub fn mark(&mut self, mark: Mark) {
        let last = self.marks.last().map_or(0, |mark| mark.acknowledged);
        self.marks.push(Mark { acknowledged: mark.acknowledged.max(last), ..mark });
    }

    /// A call was made when the log was at `before`, and created `created`.
    pub fn called(&mut self, before: u64, call: &Call, created: InodeId) {
        self.calls.push((before, call.clone(), created));
    }

    /// The calls that a recovery to `position` has undone, oldest first.
    pub fn undone(&self, position: u64) -> impl Iterator<Item = (&Call, InodeId)> {
        let first = self.calls.partition_point(|(before, ..)| *before < position);
        self.calls[first..].iter().map(|(_, call, created)| (call, *created))
    }

    /// The inode that the last call created.
    pub fn last_created(&self) -> Option<InodeId> {
        self.calls.last().map(|(_, _, created)| *created).filter(|ino| ino.0 != 0)
    }

    /// The last mark.
    pub fn last(&self) -> Mark {
        *self.marks.last().expect("a timeline starts with a mark")
    }

    /// Which states are right at `position`; empty before the first.
    pub fn at(&self, position: u64) -> &[Model] {
        let after = self.states.partition_point(|(from, _)| *from <= position);
        after.checked_sub(1).map_or(&[], |i| &self.states[i].1)
    }

    /// What a crash after `events` device events may leave: the least position that has been promised, and the
    /// largest that can have been written.
    pub fn bounds(&self, events: usize) -> (u64, u64) {
        let after = self.marks.partition_point(|mark| mark.events <= events);
        let promised = after.checked_sub(1).map_or(0, |i| self.marks[i].acknowledged);
        let running = self.marks[after.min(self.marks.len() - 1)];
        (promised, running.position)
    }

    /// Device events at the first mark: crashes before it are not this timeline's business.
    pub fn first_event(&self) -> usize {
        self.marks[0].events
    }
}
