//! What devices that failed keep from being reaped, and when it is tried again: more and more seldom as long as they fail, and
//! by one of those that met the same error, for the others would only meet it again.
//!
//! Knows nothing of queues, nor of time: it counts how often the background looks around.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Task;

/// The background tries again when it has looked around so often, at first: some seconds.
const LOOKS_AT_FIRST: u32 = 20;
/// And at last: an hour.
const LOOKS_AT_LAST: u32 = 7200;

/// Tasks that met a device that failed, each once, by what that said.
#[derive(Default)]
pub struct Ailing(BTreeMap<String, Place>);

/// What one error keeps from being done.
#[derive(Default)]
struct Place {
    tasks: BTreeSet<Task>,
    /// The one of them that is being tried, which is not among them meanwhile.
    tried: Option<Task>,
    /// The one that was tried before.
    last: Option<Task>,
    /// How often the background has looked around since it failed.
    looks: u32,
    /// After how many looks it is tried again.
    interval: u32,
}

impl Place {
    /// The next one to be tried. They take turns: not all of them need be kept by the same.
    fn next(&mut self) -> Option<Task> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next =
            self.tasks.range((after, Bound::Unbounded)).next().or_else(|| self.tasks.first()).copied()?;
        self.tasks.remove(&next);
        (self.tried, self.last) = (Some(next), Some(next));
        Some(next)
    }
}

impl Ailing {
    /// `task` has met this error. Whether that is to be said: it is new, or will be tried more seldom from now on.
    pub(super) fn put_off(&mut self, task: Task, error: &str) -> bool {
        let (mut interval, mut seldom) = (LOOKS_AT_FIRST, false);
        for place in self.0.values_mut() {
            place.tasks.remove(&task);
            if place.tried == Some(task) {
                (place.tried, place.looks) = (None, 0);
                interval = place.interval.saturating_mul(2).min(LOOKS_AT_LAST);
                seldom |= interval > place.interval;
                place.interval = interval;
            }
        }
        let new = !self.0.contains_key(error);
        let place = self.0.entry(error.to_owned()).or_default();
        if new {
            // Where a device fails in one way and then in another, it is no better.
            place.interval = interval;
        }
        place.tasks.insert(task);
        self.0.retain(|_, place| place.tried.is_some() || !place.tasks.is_empty());
        new || seldom
    }

    /// `task` has met no device that fails. Gives what it kept company, which may be well, too.
    pub(super) fn recovered(&mut self, task: Task) -> Vec<Task> {
        let mut well = Vec::new();
        self.0.retain(|_, place| {
            // Another one that is being tried is in a queue.
            let is_well = place.tried == Some(task) || place.tasks.remove(&task);
            if is_well {
                well.extend(&place.tasks);
            }
            !is_well
        });
        well
    }

    /// The background looks around: gives what is to be tried again.
    pub(super) fn look(&mut self) -> Vec<Task> {
        self.0.values_mut().for_each(|place| place.looks = place.looks.saturating_add(1));
        self.due(|place| place.interval)
    }

    /// Gives what is to be tried because somebody waits for space, however long it would be left alone else.
    pub(super) fn hurry(&mut self) -> Vec<Task> {
        self.due(|_| LOOKS_AT_FIRST)
    }

    fn due(&mut self, looks: impl Fn(&Place) -> u32) -> Vec<Task> {
        let due = self.0.values_mut().filter(|place| place.tried.is_none() && place.looks >= looks(place));
        due.filter_map(Place::next).collect()
    }

    /// Whether `task` waits here until it is tried again.
    pub(super) fn holds(&self, task: Task) -> bool {
        self.0.values().any(|place| place.tasks.contains(&task))
    }

    /// How many there are that are in no queue.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|place| place.tasks.len()).sum()
    }

    /// Whether a device has failed, and nothing is known of its being well.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use varve_engine::InodeId;

    use super::*;

    fn task(number: u64) -> Task {
        Task::Orphan(InodeId(number))
    }

    // Goal: of many that meet the same error one is tried at a time, in turn, more and more seldom and never less than once an hour,
    // and it is said when that changes. Method: 40 tasks, and a day of looks in which all fail.
    #[test]
    fn one_is_tried_for_all() {
        let mut ailing = Ailing::default();
        let said = (0..40).filter(|number| ailing.put_off(task(*number), "block 1")).count();
        assert_eq!(said, 1);
        let (mut tried, mut said) = (Vec::new(), 0);
        for look in 0..24 * 7200 {
            for task in ailing.look() {
                assert_eq!(ailing.len(), 39);
                tried.push((look, task));
                said += usize::from(ailing.put_off(task, "block 1"));
            }
        }
        assert_eq!(tried[..3], [(19, task(0)), (59, task(1)), (139, task(2))]);
        assert!((24..40).contains(&tried.len()), "{}", tried.len());
        assert_eq!((said, ailing.len()), (9, 40));
        // Somebody waits for space: they are tried as often as at first, and each once it is known to be well.
        (0..LOOKS_AT_FIRST).for_each(|_| assert!(ailing.look().is_empty() && ailing.len() == 40));
        let hurried = ailing.hurry();
        assert!(hurried.len() == 1 && ailing.hurry().is_empty());
        let well = ailing.recovered(hurried[0]);
        assert!(well.len() == 39 && !well.contains(&hurried[0]) && ailing.is_empty());
    }

    // Goal: what one error keeps from being done keeps nothing else; and what fails in turns in several ways is left alone all the same.
    // Method: two errors, of which one ends; a task that meets one and then the other.
    #[test]
    fn errors_are_told_apart() {
        let mut ailing = Ailing::default();
        assert!(ailing.put_off(task(1), "block 1") && ailing.put_off(task(2), "block 2"));
        assert!(!ailing.put_off(task(3), "block 2") && !ailing.put_off(task(3), "block 2"));
        (1..LOOKS_AT_FIRST).for_each(|_| assert!(ailing.look().is_empty()));
        assert_eq!((ailing.look(), ailing.len()), (vec![task(1), task(2)], 1));
        assert!(ailing.put_off(task(1), "block 1"));
        assert_eq!(ailing.recovered(task(2)), [task(3)]);
        assert_eq!(ailing.len(), 1);
        assert!(ailing.recovered(task(9)).is_empty());
        let mut tried = 0;
        for look in 0..1_000 {
            for task in ailing.look() {
                tried += 1;
                ailing.put_off(task, if look % 2 == 0 { "block 1" } else { "block 1 of the other copy" });
            }
        }
        assert!((3..7).contains(&tried), "{tried}");
        assert_eq!(ailing.len(), 1);
    }
}
