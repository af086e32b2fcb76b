//! The versions a holder sees, nearest first, each with the byte at which it stops being visible.
//!
//! The read rule of the design lives here and nowhere else: walking towards the root, what is visible of a version
//! ends at the smallest limit met before it. Keys fall along the way, so finding a key is a binary search.

use std::sync::Arc;

use varve_format::record::version::{Drain, NO_LIMIT, VersionRecord};
use varve_format::{Corrupt, FamilyId, VersionId, VersionKey};

use super::pending::{State, corrupt, record, state};
use super::trunk::{Limit, READ_MAX, Trunk};
use super::{Holder, Planted, Read, Result, planted};

/// Steps in front of the shared ones, at most: beyond them a new shared list is made. More where that list is long, so
/// that extending a path costs the same however long it is.
const OWN_STEPS_MAX: usize = 16;
/// So many shared steps allow for one more of one's own.
const SHARED_RATIO: usize = 256;

/// Versions that go above one that deletes the family with all there is of it: each of its steps passes them again. Where there are
/// more it lets go, and the reaper has one row that nobody inherits from, which it goes by once. (Few in unit tests, so that the models
/// meet more.)
const GOING_MAX: usize = if cfg!(test) { 3 } else { 16 };

/// One version on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Its id.
    pub(super) id: VersionId,
    /// The key of its entries.
    pub(super) key: VersionKey,
    /// Its entries are visible below this byte of the file.
    pub(super) visible: u64,
    /// What becomes of it.
    pub(super) state: State,
}

/// The way from a holder's version to the root. Cheap to copy and to extend, however long.
#[derive(Clone, Debug)]
pub struct Path {
    family: FamilyId,
    head: Step,
    /// The next ones, few.
    own: Vec<Step>,
    /// The rest, from `shared_from` on, visible below `shared_visible` at most, and behind each of `shared_limits` below its end, which
    /// falls. Plain files have none.
    shared: Option<Arc<[Step]>>,
    shared_from: usize,
    shared_visible: u64,
    shared_limits: Option<Arc<[Limit]>>,
    drain: Drain,
    writable: bool,
    /// Nobody holds or inherits from any version of the path, but its holder.
    sole: bool,
    /// Some version behind the head is [`State::Inner`]: what is written may hide the last sight of something.
    inner: bool,
}

impl Path {
    /// The path of a holder whose family has no version records. Costs no read and no allocation.
    pub fn implicit(holder: Holder) -> Path {
        debug_assert_eq!(holder.version.0, holder.family.0, "only a family's first version may be implicit");
        let key = VersionKey(holder.family.0);
        Path::of_head(
            holder.family,
            Step { id: holder.version, key, visible: NO_LIMIT, state: State::Held },
            Drain::None,
            true,
        )
    }

    /// Stands where a path will be loaded before it is used.
    pub fn unknown(holder: Holder) -> Path {
        let key = VersionKey(holder.version.0);
        let head = Step { id: holder.version, key, visible: NO_LIMIT, state: State::Held };
        Path::of_head(holder.family, head, Drain::None, false)
    }

    fn of_head(family: FamilyId, head: Step, drain: Drain, writable: bool) -> Path {
        Path {
            family,
            head,
            own: Vec::new(),
            shared: None,
            shared_from: 0,
            shared_visible: NO_LIMIT,
            shared_limits: None,
            drain,
            writable,
            sole: writable,
            inner: false,
        }
    }

    /// The path of `holder`: one read a version in front of what is known of the family (`trunk`), none when
    /// [`Holder::has_versions`] is false.
    ///
    /// # Errors
    /// [`crate::EngineError::Corrupt`] when a record is missing, or ids or keys do not grow along the path.
    pub fn load(read: &dyn Read, holder: Holder) -> Result<Path> {
        if is_implicit(holder) {
            return Ok(Path::implicit(holder));
        }
        let family = holder.family;
        let (head, mut version) = head(read, holder)?;
        let mut path = Path::of_head(family, head, version.drain, version.refs == 1 && version.children == 0);
        let known = read.trunks();
        let (mut last, mut limit, mut rest, mut joined) = (head, NO_LIMIT, Vec::new(), None);
        // Those of the versions that were read: the head's place is 0.
        let mut limits = Vec::new();
        while let Some(id) = version.parent {
            if version.limit != NO_LIMIT {
                limits.push(Limit { place: rest.len(), end: version.limit });
            }
            limit = match planted(Planted::LimitNotCarried) {
                true => version.limit,
                false => limit.min(version.limit),
            };
            joined = known.and_then(|(trunks, at)| trunks.find(family, id, at));
            joined = joined.filter(|(trunk, at)| trunk.steps[*at].key < last.key);
            if let Some((trunk, at)) = &joined {
                path.inner |= trunk.has_inner(*at);
                path.sole &= trunk.only_going(*at);
                break;
            }
            (last, version) = parent(read, family, last, id)?;
            last.visible = limit;
            path.inner |= last.state == State::Inner;
            path.sole &= last.state == State::Going;
            rest.push(last);
        }
        if rest.len() <= READ_MAX
            && let Some((trunk, at)) = &joined
        {
            path.join(trunk, *at);
            (path.own, path.shared_visible) = (rest, limit);
            return Ok(path);
        }
        let Some((trunks, position)) = known.filter(|_| rest.len() > READ_MAX) else {
            path.shared = (!rest.is_empty()).then(|| rest.into());
            return Ok(path);
        };
        rest.insert(0, head);
        if let Some((trunk, at)) = joined {
            let moved = |limit: &Limit| Limit { place: limit.place - at + rest.len(), ..*limit };
            limits.extend(trunk.limits_from(at).iter().map(moved));
            rest.extend_from_slice(&trunk.steps[at..]);
        }
        let trunk = Trunk::new(rest, limits, position);
        path.join(&trunk, 0);
        // The head is one's own; its limit holds for all behind it.
        path.shared_from = 1;
        trunks.keep(family, trunk);
        Ok(path)
    }

    /// The rest of it is that of a trunk from `at` on.
    fn join(&mut self, trunk: &Trunk, at: usize) {
        let limits = trunk.limits_on(at);
        (self.shared, self.shared_from) = (Some(trunk.steps.clone()), at);
        self.shared_limits = (!limits.is_empty()).then(|| limits.into());
    }

    /// Whose data.
    pub fn family(&self) -> FamilyId {
        self.family
    }
    /// Versions on the path, the holder's included.
    pub fn versions(&self) -> usize {
        1 + self.own.len() + self.shared().len()
    }
    /// Whether the holder may write into its version. If not, it shares it, and opens a child first.
    pub fn writable(&self) -> bool {
        self.writable
    }
    /// Whether nobody else holds or inherits anything of the path.
    pub fn sole(&self) -> bool {
        self.sole
    }

    /// Whether writing through it may hide something from the last one who sees it, and so leave the reaper work: tell
    /// it when the transaction has been applied.
    pub fn has_inner(&self) -> bool {
        self.inner
    }
    /// The place of its version in a walk through the tree of the family's versions that goes down before it goes on: who looks
    /// at holders in this order, or against it, meets those one after the other that have most in common. Paths of one family;
    /// costs the logarithm of their length.
    pub fn order(&self, other: &Path) -> std::cmp::Ordering {
        let (ours, theirs) = (self.versions(), other.versions());
        let id = |path: &Path, from_root: usize| path.step(path.versions() - 1 - from_root).id;
        // Two that have a version in common have all in common that are older.
        let (mut low, mut high) = (0, ours.min(theirs));
        while low < high {
            let middle = low + (high - low) / 2;
            if id(self, middle) == id(other, middle) { low = middle + 1 } else { high = middle }
        }
        match low == ours || low == theirs {
            true => ours.cmp(&theirs),
            false => id(self, low).cmp(&id(other, low)),
        }
    }
    /// The holder's own version.
    pub(super) fn head(&self) -> Step {
        self.head
    }
    fn shared(&self) -> &[Step] {
        self.shared.as_ref().map_or(&[], |shared| &shared[self.shared_from..])
    }
    /// The step at `at`, counted from the head; `at` is less than [`Path::versions`].
    pub(super) fn step(&self, at: usize) -> Step {
        match at.checked_sub(1) {
            None => self.head,
            Some(at) if at < self.own.len() => self.own[at],
            Some(at) => {
                let at = at - self.own.len();
                let (step, limit) = (self.shared()[at], self.shared_limit(self.shared_from + at));
                Step { visible: step.visible.min(self.shared_visible).min(limit), ..step }
            }
        }
    }
    /// The smallest limit of shared versions in front of the one at `place` of their list.
    fn shared_limit(&self, place: usize) -> u64 {
        let Some(limits) = &self.shared_limits else { return NO_LIMIT };
        let before = limits.partition_point(|limit| limit.place < place);
        before.checked_sub(1).map_or(NO_LIMIT, |last| limits[last].end)
    }
    /// The key of [`Path::step`].
    fn key(&self, at: usize) -> VersionKey {
        match at.checked_sub(1) {
            None => self.head.key,
            Some(at) if at < self.own.len() => self.own[at].key,
            Some(at) => self.shared()[at - self.own.len()].key,
        }
    }
    /// The place of the first step at or behind `from` whose key is at most `key`; [`Path::versions`] if there is none.
    pub(super) fn first_at_most(&self, from: usize, key: VersionKey) -> usize {
        let (mut low, mut high) = (from, self.versions());
        // Mostly it is the next one.
        if low < high && self.key(low) <= key {
            return low;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) <= key { high = middle } else { low = middle + 1 }
        }
        low
    }
    /// How many steps from the first on a write deals with: while the head drains up, its parent's key takes the
    /// new entries, and the head's own must go.
    pub(super) fn own(&self) -> usize {
        if self.drain == Drain::Up { 2 } else { 1 }
    }
    /// The key that new entries get.
    pub(super) fn target(&self) -> VersionKey {
        self.step(self.own() - 1).key
    }
    /// How many steps from the first on belong to the holder alone, because the head and its parent are becoming one.
    pub(super) fn merging(&self) -> usize {
        if self.drain == Drain::None { 1 } else { 2 }
    }
    /// What is visible beyond the first `merging` steps now ends at `limit`.
    pub(super) fn lower(&mut self, limit: u64) {
        let merging = self.merging();
        while self.own.len() + 1 < merging {
            self.own.push(self.step(1 + self.own.len()));
            self.shared_from += 1;
        }
        for step in self.own.iter_mut().skip(merging - 1) {
            step.visible = step.visible.min(limit);
        }
        self.shared_visible = self.shared_visible.min(limit);
    }
    /// A new, empty version in front, which sees the others below `limit`. The head becomes what `state` says.
    pub(super) fn open_child(&mut self, id: VersionId, limit: u64, state: State) {
        self.head.state = state;
        self.own.insert(0, self.head);
        for step in &mut self.own {
            step.visible = step.visible.min(limit);
        }
        self.shared_visible = self.shared_visible.min(limit);
        self.inner |= state == State::Inner;
        self.sole &= state == State::Going;
        if self.own.len() > OWN_STEPS_MAX.max(self.shared().len() / SHARED_RATIO) {
            let all: Vec<Step> = (1..self.versions()).map(|at| self.step(at)).collect();
            (self.own, self.shared, self.shared_from) = (Vec::new(), Some(all.into()), 0);
            (self.shared_visible, self.shared_limits) = (NO_LIMIT, None);
        }
        self.head = Step { id, key: VersionKey(id.0), visible: NO_LIMIT, state: State::Held };
        (self.drain, self.writable) = (Drain::None, true);
    }
}

/// Whether a holder's family has no version records, and its only version is the first.
fn is_implicit(holder: Holder) -> bool {
    !holder.has_versions && holder.version.0 == holder.family.0
}

/// The version of a holder whose family may have records, all of it visible.
fn head(read: &dyn Read, holder: Holder) -> Result<(Step, VersionRecord)> {
    let version = record(read, holder.family, holder.version)?;
    if version.key.0 > holder.version.0 {
        let why = Corrupt { what: "key that is younger than its version", at: 0 };
        return Err(corrupt(holder.family, holder.version, why));
    }
    Ok((step(holder.version, &version), version))
}

/// The parent `id` of `child`, all of it visible. Ids fall strictly, which bounds each way up, on hostile records too.
fn parent(read: &dyn Read, family: FamilyId, child: Step, id: VersionId) -> Result<(Step, VersionRecord)> {
    let version = record(read, family, id)?;
    if id >= child.id || version.key >= child.key {
        let why = Corrupt { what: "version that is not younger than its parent", at: 0 };
        return Err(corrupt(family, child.id, why));
    }
    Ok((step(id, &version), version))
}

fn step(id: VersionId, version: &VersionRecord) -> Step {
    Step { id, key: version.key, visible: NO_LIMIT, state: state(version) }
}

/// What [`Path::sole`] says of the path of `holder`, without the rest of it: that of many versions is mostly clear from the first. It
/// says no where it would have to pass more than [`GOING_MAX`] that go.
pub(super) fn is_sole(read: &dyn Read, holder: Holder) -> Result<bool> {
    if is_implicit(holder) {
        return Ok(true);
    }
    let (mut at, mut version) = head(read, holder)?;
    if version.refs != 1 || version.children > 0 {
        return Ok(false);
    }
    for _ in 0..GOING_MAX {
        let Some(id) = version.parent else { return Ok(true) };
        (at, version) = parent(read, holder.family, at, id)?;
        // One that goes has no other child: whoever inherits from it does so through those that were passed.
        if at.state != State::Going {
            return Ok(false);
        }
    }
    Ok(version.parent.is_none())
}
