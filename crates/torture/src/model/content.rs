//! Bytes of a file as the reference model holds them: sparse pages, cheap to clone.
//!
//! A page usually has one content. Where a call both changed a page and logged it, the model cannot know which of
//! the two contents went into the log, so a page of a *logged* state may have several that are acceptable, until a call tells
//! that all is logged; a live state always has exactly one. Bytes beyond the size are zeros in every page. Knows nothing of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Part;

/// Bytes in a page.
pub const PAGE_BYTES: u64 = 4096;

type Page = Arc<[u8; PAGE_BYTES as usize]>;

/// Pages, and the number of the call that has set space aside for each. Who shares a page shares that space.
type Reservations = BTreeMap<u64, u64>;

/// What stands for the number of a call when it is not known which of two has reserved a page.
const SOME_RESERVATION: u64 = 0;

#[derive(Clone)]
struct Slot {
    page: Page,
    others: Vec<Page>,
}

/// A file's size and bytes. Pages that are absent are zeros.
#[derive(Clone, Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Slot>,
    /// Absent pages that have space set aside for their first write, and which reservation that is.
    reserved: Arc<Reservations>,
    /// These, and others that may have it: written to, and not logged at a crash.
    reserved_most: Arc<Reservations>,
    /// Others share its bytes, or have done so.
    forked: bool,
}

/// The range of a punch, as the log sees it: whole pages go at once, parts of a page are written, and wait.
#[derive(Clone, Copy, Debug)]
pub struct Punch {
    /// First byte.
    pub from: u64,
    /// Behind the last byte.
    pub to: u64,
    /// Size of the file in memory.
    pub size: u64,
}

impl Punch {
    /// The pages that go: also the one that holds the end of the file, of which nothing is left.
    pub fn pages(&self) -> std::ops::Range<u64> {
        let floor = self.to / PAGE_BYTES;
        let holds_end = floor * PAGE_BYTES < self.size && self.size <= self.to;
        let last = if holds_end { self.to.div_ceil(PAGE_BYTES) } else { floor };
        self.from.div_ceil(PAGE_BYTES)..last.max(self.from.div_ceil(PAGE_BYTES))
    }

    /// Bytes of page `number` that become zeros.
    fn within(&self, number: u64) -> std::ops::Range<usize> {
        let begin = self.from.max(number * PAGE_BYTES) - number * PAGE_BYTES;
        let end = self.to.min((number + 1) * PAGE_BYTES).saturating_sub(number * PAGE_BYTES);
        begin.min(PAGE_BYTES) as usize..end.max(begin).min(PAGE_BYTES) as usize
    }
}

fn remove_range(pages: &mut Arc<Reservations>, range: std::ops::Range<u64>) {
    if !range.is_empty() && pages.range(range.clone()).next().is_some() {
        Arc::make_mut(pages).retain(|number, _| !range.contains(number));
    }
}

fn zeros() -> Page {
    Arc::new([0; PAGE_BYTES as usize])
}

fn is_zeros(page: &Page) -> bool {
    page.iter().all(|byte| *byte == 0)
}

impl Content {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A copy of all of `source` shares what is set aside there.
    pub fn may_share_reserved(&mut self, source: &Content) {
        self.forked = true;
        Arc::make_mut(&mut self.reserved_most).extend(source.reserved_most.iter());
    }

    /// A copy begins with this, and the source of one remembers it: space that was set aside is the first writer's.
    pub fn was_shared(&mut self) {
        self.forked = true;
    }

    /// The reservations that may be there in `range`, which others share: who writes takes them from the others.
    pub fn reservations(&self, range: std::ops::Range<u64>) -> Vec<(u64, u64)> {
        if !self.forked || range.is_empty() {
            return Vec::new();
        }
        self.reserved_most.range(range).map(|(page, number)| (*page, *number)).collect()
    }

    /// Whether any of these [`Content::reservations`] may be one of its own.
    pub fn has_one_of(&self, taken: &[(u64, u64)]) -> bool {
        self.forked && taken.iter().any(|one| self.is_one(one))
    }

    /// Another has written where it had these.
    pub fn lose(&mut self, taken: &[(u64, u64)]) {
        for one in taken {
            if self.is_one(one) {
                Arc::make_mut(&mut self.reserved).remove(&one.0);
            }
        }
    }

    fn is_one(&self, (page, number): &(u64, u64)) -> bool {
        self.reserved.get(page).is_some_and(|mine| mine == number || *number == SOME_RESERVATION)
    }

    /// Whether others share its bytes, or have done so.
    pub fn is_forked(&self) -> bool {
        self.forked
    }

    fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number).map(|slot| &slot.page)
    }

    fn page_bytes(&self, number: u64) -> &[u8] {
        const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        self.page(number).map_or(&ZEROS[..], |page| &page[..])
    }

    /// Writes `data` at `offset`, growing the file if it ends beyond the size.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let pages = offset / PAGE_BYTES..(offset + data.len() as u64).div_ceil(PAGE_BYTES);
        self.spend(offset, data.len() as u64);
        remove_range(&mut self.reserved_most, pages);
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = at / PAGE_BYTES;
            let within = (at % PAGE_BYTES) as usize;
            let n = rest.len().min(PAGE_BYTES as usize - within);
            let slot = self.pages.entry(number).or_insert_with(|| Slot { page: zeros(), others: Vec::new() });
            slot.others.clear();
            Arc::make_mut(&mut slot.page)[within..within + n].copy_from_slice(&rest[..n]);
            at += n as u64;
            rest = &rest[n..];
        }
        self.size = self.size.max(at);
    }

    /// Bytes of `offset..offset + len`, zeros where the file has none.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(len as usize);
        let mut at = offset;
        while at < offset + len {
            let within = (at % PAGE_BYTES) as usize;
            let n = ((offset + len - at) as usize).min(PAGE_BYTES as usize - within);
            out.extend_from_slice(&self.page_bytes(at / PAGE_BYTES)[within..within + n]);
            at += n as u64;
        }
        out
    }

    /// Punches a hole. In a logged state the bytes of pages that are punched in part wait for their own place.
    pub fn punch(&mut self, punch: &Punch, logged: bool) {
        let gone = punch.pages();
        if !logged {
            for number in punch.from / PAGE_BYTES..punch.to.div_ceil(PAGE_BYTES) {
                if let Some(slot) = self.pages.get_mut(&number).filter(|_| !gone.contains(&number)) {
                    Arc::make_mut(&mut slot.page)[punch.within(number)].fill(0);
                }
            }
        }
        self.pages.retain(|number, _| !gone.contains(number));
        remove_range(&mut self.reserved, gone.clone());
        remove_range(&mut self.reserved_most, gone);
    }

    /// A punch that may be done in part: each page is as it was or punched, and none has space set aside for sure.
    pub fn punch_perhaps(&mut self, punch: &Punch) {
        let pages = punch.from / PAGE_BYTES..punch.to.div_ceil(PAGE_BYTES);
        for (number, slot) in self.pages.range_mut(pages.clone()) {
            for page in std::iter::once(&slot.page).chain(&slot.others).cloned().collect::<Vec<_>>() {
                let mut punched = page;
                Arc::make_mut(&mut punched)[punch.within(*number)].fill(0);
                slot.others.push(punched);
            }
        }
        remove_range(&mut self.reserved, pages);
    }

    /// Which of the two contents of every page of an unfinished punch `bytes`, read at the beginning of its first page,
    /// are; the first byte that is neither, or of a whole page that has gone before one in front of it. `self` has been through
    /// [`Content::punch_perhaps`]. `stay`: zeros may be data.
    pub fn punch_found(&mut self, punch: &Punch, bytes: &[u8], stay: bool) -> Result<(), u64> {
        let first = punch.from / PAGE_BYTES;
        self.accepts(first * PAGE_BYTES, bytes)?;
        let mut is_done = true;
        for (number, chunk) in (first..).zip(bytes.chunks(PAGE_BYTES as usize)) {
            let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            if !punch.pages().contains(&number) || zeros(self.page_bytes(number)) {
                continue;
            }
            if !is_done && zeros(chunk) {
                return Err(number * PAGE_BYTES);
            }
            is_done = zeros(chunk);
            if is_done && !stay {
                self.pages.remove(&number);
            }
        }
        self.settle(first * PAGE_BYTES, bytes);
        Ok(())
    }

    /// In a logged state: what `live` no longer has of the whole pages of `punch`, and `old` had, has gone.
    pub fn punch_like(&mut self, punch: &Punch, old: &Content, live: &Content) {
        for number in punch.pages() {
            match (live.page(number), old.page(number)) {
                (None, Some(_)) => drop(self.pages.remove(&number)),
                (Some(new), Some(old)) if is_zeros(new) && !is_zeros(old) => self.put_zeros(number),
                _ => {}
            }
        }
        remove_range(&mut self.reserved, punch.pages());
    }

    fn put_zeros(&mut self, number: u64) {
        self.pages.insert(number, Slot { page: zeros(), others: Vec::new() });
    }

    /// Zeros have been written over page `number`: it is no hole, and nothing is set aside for it.
    pub fn zero_written(&mut self, number: u64) {
        self.put_zeros(number);
        for set in [&mut self.reserved, &mut self.reserved_most] {
            remove_range(set, number..number + 1);
        }
    }

    /// In a logged state: of the whole pages of `punch` zeros have been written over those of which `live` says so.
    pub fn zero_like(&mut self, punch: &Punch, live: &Content) {
        for number in punch.pages() {
            if live.page(number).is_some() {
                self.zero_written(number);
            } else if !live.reserved.contains_key(&number) {
                remove_range(&mut self.reserved, number..number + 1);
            }
        }
    }

    /// Takes `len` bytes out at `offset`, or puts a hole of so many in; both are whole pages.
    pub fn shift(&mut self, offset: u64, len: u64, insert: bool) {
        let (first, count) = (offset / PAGE_BYTES, len / PAGE_BYTES);
        let moved = |number: u64| match insert {
            _ if number < first => Some(number),
            true => Some(number + count),
            false => (number >= first + count).then(|| number - count),
        };
        let pages = std::mem::take(&mut self.pages);
        self.pages = pages.into_iter().filter_map(|(at, slot)| Some((moved(at)?, slot))).collect();
        for set in [&mut self.reserved, &mut self.reserved_most] {
            *set = Arc::new(set.iter().filter_map(|(at, number)| Some((moved(*at)?, *number))).collect());
        }
        self.size = if insert { self.size + len } else { self.size.saturating_sub(len) };
    }

    /// Sets space aside for the holes of `from..to`: its own, also where it has shared some. `call` is the number of that call.
    pub fn reserve(&mut self, from: u64, to: u64, call: u64) {
        for page in from / PAGE_BYTES..to.div_ceil(PAGE_BYTES) {
            if !self.pages.contains_key(&page) {
                Arc::make_mut(&mut self.reserved).insert(page, call);
            }
            // A page of zeros inside an inode record is as good as none.
            if self.may_be_hole(page) {
                Arc::make_mut(&mut self.reserved_most).insert(page, call);
            }
        }
    }

    /// As [`Content::reserve`], but how far it went is not known.
    pub fn reserve_perhaps(&mut self, from: u64, to: u64) {
        let pages = from / PAGE_BYTES..to.div_ceil(PAGE_BYTES);
        Arc::make_mut(&mut self.reserved_most).extend(pages.map(|page| (page, SOME_RESERVATION)));
    }

    /// What was set aside for the pages of this range may be gone: they are being written to.
    pub fn spend(&mut self, offset: u64, len: u64) {
        remove_range(&mut self.reserved, offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES));
    }

    /// Nothing is set aside from `size` on.
    fn cut_reserved(&mut self, size: u64) {
        for set in [&mut self.reserved, &mut self.reserved_most] {
            remove_range(set, size.div_ceil(PAGE_BYTES)..u64::MAX);
        }
    }

    /// `len` bytes from page `to` on lie in the pool once, with those of `source` from page `from` on, which are the same: data
    /// where that has some, perhaps, and nothing set aside.
    pub fn share(&mut self, source: &Content, from: u64, to: u64, len: u64) {
        self.spend(to * PAGE_BYTES, len);
        for page in 0..len.div_ceil(PAGE_BYTES) {
            if source.may_be_data(from + page) {
                let blank = || Slot { page: zeros(), others: Vec::new() };
                self.pages.entry(to + page).or_insert_with(blank);
            }
        }
    }

    /// A part of `source` lies here, too: data where that has some, holes elsewhere, and nothing set aside.
    pub fn lay(&mut self, source: &Content, part: &Part) {
        if part.len == 0 {
            return;
        }
        let (from, to) = (part.from_offset / PAGE_BYTES, part.to_offset / PAGE_BYTES);
        let count = part.len.div_ceil(PAGE_BYTES);
        for number in 0..count {
            match source.pages.get(&(from + number)) {
                Some(slot) => self.pages.insert(to + number, slot.clone()),
                None => self.pages.remove(&(to + number)),
            };
        }
        remove_range(&mut self.reserved, to..to + count);
        remove_range(&mut self.reserved_most, to..to + count);
        // A block that is cut by an end may be copied, or have zeros written behind the end, though a hole is there.
        for end in [self.size, part.to_offset + part.len] {
            if !end.is_multiple_of(PAGE_BYTES) {
                let zeros = || Slot { page: zeros(), others: Vec::new() };
                self.pages.entry(end / PAGE_BYTES).or_insert_with(zeros);
            }
        }
        self.size = self.size.max(part.to_offset + part.len);
    }

    /// As [`Content::lay`], of bytes that are the same in both: whether it has been done is not known.
    pub fn lay_perhaps(&mut self, source: &Content, part: &Part) {
        let (from, to) = (part.from_offset / PAGE_BYTES, part.to_offset / PAGE_BYTES);
        for number in 0..part.len.div_ceil(PAGE_BYTES) {
            if let Some(slot) = source.pages.get(&(from + number)) {
                self.pages.entry(to + number).or_insert_with(|| slot.clone());
            }
        }
        self.spend(part.to_offset, part.len);
    }

    /// `bytes` are here from `offset` on, which is a page, and the file ends at `size`.
    pub fn set_bytes(&mut self, offset: u64, bytes: &[u8], size: u64) {
        self.truncate(size);
        if !bytes.is_empty() {
            self.write(offset, bytes);
        }
    }

    /// How much of `part` of `source` is here, from its front on, if `old` was here before: at least and at most, in whole pages
    /// or all of it. None if what is here is no such beginning.
    pub fn laid(&self, old: &Content, source: &Content, part: &Part) -> Option<(u64, u64)> {
        let (from, to) = (part.from_offset / PAGE_BYTES, part.to_offset / PAGE_BYTES);
        let count = part.len.div_ceil(PAGE_BYTES);
        let differs = |number: u64, other: &[u8]| self.page_bytes(to + number) != other;
        let most = (0..count).find(|number| differs(*number, source.page_bytes(from + number)));
        let least = (0..count).rfind(|number| differs(*number, old.page_bytes(to + number)));
        let ends = least.map_or(0, |last| last + 1)..=most.unwrap_or(count);
        let mut done = ends.map(|pages| (pages * PAGE_BYTES).min(part.len)).filter(|done| {
            let reach = if *done > 0 { part.to_offset + done } else { 0 };
            self.size == old.size.max(reach)
        });
        let first = done.next()?;
        Some((first, done.next_back().unwrap_or(first)))
    }

    /// Whether space is set aside for every byte of this range.
    pub fn is_reserved(&self, offset: u64, len: u64) -> bool {
        (offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES))
            .all(|page| self.reserved.contains_key(&page))
    }

    /// Pages that have space set aside: at least and at most. Those who share a page have it set aside once.
    pub fn reserved_pages(&self) -> (u64, u64) {
        let least = if self.forked { 0 } else { self.reserved.len() };
        (least as u64, self.reserved_most.len() as u64)
    }

    /// Pages that have space set aside for sure, ascending.
    pub fn reserved(&self) -> impl Iterator<Item = u64> + '_ {
        self.reserved.keys().copied()
    }

    /// Whether the page may be shown as data: somebody wrote to it.
    pub fn may_be_data(&self, number: u64) -> bool {
        self.pages.contains_key(&number)
    }

    /// Whether the page may be shown as a hole: zeros are acceptable.
    pub fn may_be_hole(&self, number: u64) -> bool {
        self.pages.get(&number).is_none_or(|slot| is_zeros(&slot.page) || slot.others.iter().any(is_zeros))
    }

    /// Sets the size as the user of a file that ended at `old_size` in memory sees it: unless the file grows, what was
    /// set aside beyond the end goes.
    pub fn set_size(&mut self, size: u64, old_size: u64) {
        self.truncate(size);
        if size <= old_size {
            self.cut_reserved(size);
        }
    }

    /// Sets the size; what lies beyond is gone and reads as zeros if the file grows again.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let keep = size.div_ceil(PAGE_BYTES);
            self.pages.split_off(&keep);
            let within = (size % PAGE_BYTES) as usize;
            if within != 0
                && let Some(slot) = self.pages.get_mut(&(size / PAGE_BYTES))
            {
                Arc::make_mut(&mut slot.page)[within..].fill(0);
                for page in &mut slot.others {
                    Arc::make_mut(page)[within..].fill(0);
                }
            }
        }
        self.size = size;
    }

    /// The pages of `offset..offset + len` take their place in the log, and `size` becomes the file's size there.
    /// What they hold is what `before` or `after` the running call the file held.
    pub fn log(&mut self, offset: u64, len: u64, size: u64, before: &Content, after: &Content) {
        let end = offset.saturating_add(len);
        for number in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let old = before.page(number);
            let new = after.page(number);
            let same = match (old, new) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new) || old == new,
                (None, None) => true,
                _ => before.page_bytes(number) == after.page_bytes(number),
            };
            // The range may have gaps: a page that only the running call has written to may lie in one, and so may a page of
            // zeros, which is a hole if it was copied from one.
            if old.is_some_and(|page| !is_zeros(page)) {
                remove_range(&mut self.reserved_most, number..number + 1);
            }
            match new {
                None if same => {
                    self.pages.remove(&number);
                }
                _ => {
                    let page = new.cloned().unwrap_or_else(zeros);
                    let others = if same { Vec::new() } else { vec![old.cloned().unwrap_or_else(zeros)] };
                    self.pages.insert(number, Slot { page, others });
                }
            }
        }
        self.spend(offset, len);
        if size < self.size {
            self.truncate(size);
        }
        self.size = size;
    }

    /// Whether the bytes of `from..to` are, page by page, those of `before` or `after`.
    pub fn range_is(&self, from: u64, to: u64, before: &Content, after: &Content) -> bool {
        if from >= to {
            return true;
        }
        (from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)).all(|number| {
            let start = (from.max(number * PAGE_BYTES) - number * PAGE_BYTES) as usize;
            let end = (to.min((number + 1) * PAGE_BYTES) - number * PAGE_BYTES) as usize;
            let mine = &self.page_bytes(number)[start..end];
            mine == &before.page_bytes(number)[start..end] || mine == &after.page_bytes(number)[start..end]
        })
    }

    /// Whether `bytes`, read at `offset` (a multiple of the page size), are acceptable; the first wrong byte if not.
    pub fn accepts(&self, offset: u64, bytes: &[u8]) -> Result<(), u64> {
        debug_assert!(offset.is_multiple_of(PAGE_BYTES));
        for (i, chunk) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let number = offset / PAGE_BYTES + i as u64;
            let want = self.page_bytes(number);
            if &want[..chunk.len()] == chunk {
                continue;
            }
            let others = self.pages.get(&number).map_or(&[][..], |slot| &slot.others[..]);
            if !others.iter().any(|page| &page[..chunk.len()] == chunk) {
                let within = want.iter().zip(chunk).position(|(a, b)| a != b).unwrap_or(0);
                return Err(number * PAGE_BYTES + within as u64);
            }
        }
        Ok(())
    }

    /// The byte at `at`, in its first acceptable content.
    pub fn byte(&self, at: u64) -> u8 {
        self.page_bytes(at / PAGE_BYTES)[(at % PAGE_BYTES) as usize]
    }

    /// Whether a page of `offset..offset + len` has several acceptable contents.
    pub fn has_choices(&self, offset: u64, len: u64) -> bool {
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        self.pages.range(pages).any(|(_, slot)| !slot.others.is_empty())
    }

    /// Replaces what is acceptable by what was found: `bytes` at `offset`, a multiple of the page size.
    pub fn settle(&mut self, offset: u64, bytes: &[u8]) {
        for (i, chunk) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let number = offset / PAGE_BYTES + i as u64;
            if let Some(slot) = self.pages.get_mut(&number)
                && !slot.others.is_empty()
            {
                let mut page = [0; PAGE_BYTES as usize];
                page[..chunk.len()].copy_from_slice(chunk);
                *slot = Slot { page: Arc::new(page), others: Vec::new() };
            }
        }
    }

    /// Of several acceptable contents of a page the first one has turned out to be what is there.
    pub fn settle_first(&mut self) {
        for slot in self.pages.values_mut() {
            slot.others.clear();
        }
    }

    /// Whether both hold the same size and bytes (first contents).
    pub fn same(&self, other: &Content) -> bool {
        self.size == other.size && self.range_is(0, self.size, other, other)
    }

    /// Bytes in pages that are not holes.
    pub fn stored_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }
}
