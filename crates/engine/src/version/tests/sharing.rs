//! Ranges shared between files, in the model.

use std::collections::BTreeMap;

use varve_format::record::shares::{SharedRun, shares_key};

use super::keyframe::outdated;
use super::world::{File, World};
use super::*;
use crate::shares::{settle, touching};
use crate::transaction::Op;

impl Maps {
    /// The steps of a transaction as they are when it is applied.
    pub(super) fn settled(&self, tx: &Transaction) -> Vec<Op> {
        let scan = |from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
            self.scan(TreeId::KEYFRAMES, from, each)
        };
        // A look at a root is no descent.
        let empty =
            |tree: TreeId| self.trees.range((tree.0, Vec::new())..(tree.0 + 1, Vec::new())).next().is_none();
        let outdated = match empty(TreeId::KEYFRAMES) {
            true => Vec::new(),
            false => outdated(tx.ops(), scan).unwrap(),
        };
        if tx.shared.is_empty() && empty(TreeId::SHARES) {
            return tx.ops().iter().cloned().chain(outdated).collect();
        }
        let mut load = |from, to| {
            let before = self.last_at_or_before(TreeId::SHARES, &shares_key(from - 1))?;
            touching(from, to, before, |key, each| self.scan(TreeId::SHARES, key, each))
                .map(|runs| runs.unwrap())
        };
        let settled = settle(tx.ops(), &tx.shared, &mut load)
            .unwrap_or_else(|why: crate::shares::Unsettled<EngineError>| panic!("freed twice: {why:?}"));
        settled.into_iter().chain(outdated).collect()
    }

    /// How many extents more than one name each block, says the tree.
    pub(super) fn counted(&self) -> BTreeMap<u64, u64> {
        let mut counted = BTreeMap::new();
        for ((_, key), value) in
            self.trees.range((TreeId::SHARES.0, Vec::new())..(TreeId::SHARES.0 + 1, Vec::new()))
        {
            let run = SharedRun::decode(key, value).unwrap();
            for block in run.first..run.end() {
                assert!(counted.insert(block, run.more).is_none(), "counts overlap");
            }
        }
        counted
    }
}

impl World {
    /// The blocks of the model that are there, in the beginning of each piece, where writing over it is said to give back a block each.
    pub(super) fn given_back(&mut self, f: usize, pieces: &[(u64, Run)]) -> Vec<u64> {
        let path = Path::load(&self.maps, self.files[f].holder).unwrap();
        let mut given = Vec::new();
        for (from, run) in pieces {
            let to = from + run.bytes();
            let upto = gives_back(&self.maps, &path, *from, to).unwrap();
            assert!(upto.is_multiple_of(BLOCK) && (*from..=to).contains(&upto));
            let next = first_that_gives_back(&self.maps, &path, upto, to).unwrap();
            let gives = |at: u64| gives_back(&self.maps, &path, at, (at + BLOCK).min(to)).unwrap() > at;
            let first = (upto / BLOCK..to / BLOCK).find(|block| gives(block * BLOCK));
            assert_eq!(next, first.map_or(to, |block| block * BLOCK));
            let mine = &self.files[f].blocks;
            for block in from / BLOCK..upto / BLOCK {
                // What a version that drains has under a hole of the other's is given back, too.
                given.extend(mine.get(&block));
            }
            let sees = |file: &File, at: &u64| file.blocks.values().filter(|other| *other == at).count();
            let next =
                mine.get(&(upto / BLOCK)).filter(|_| upto < to && path.writable() && path.versions() == 1);
            // What has been deleted may be named until it is reaped.
            let counted = next.map(|_| self.maps.counted()).unwrap_or_default();
            let next = next.filter(|at| !counted.contains_key(at));
            let named = next.map(|at| self.files.iter().map(|file| sees(file, at)).sum::<usize>());
            assert_ne!(named, Some(1), "block {} of {f} is nobody else's", upto / BLOCK);
            self.saw(match (upto > *from, upto < to) {
                (true, true) => "gives back a part",
                (true, false) => "gives back all",
                (false, _) => "gives back nothing",
            });
        }
        given
    }

    /// A range of one file becomes a range of another, or of the same.
    pub(super) fn share_range(&mut self, f: usize, g: usize) {
        let (mut from, mut to, len) = (self.some_block(), self.some_block(), self.some_length());
        if self.random.below(3) == 0 {
            // Where it is already, in whole or in part.
            to = from + self.random.below(3);
        }
        if f == g && from < to + len && to < from + len {
            from += len + self.random.below(3) + to.saturating_sub(from);
            (from, to) = if self.random.below(2) == 0 { (from, to) } else { (to, from) };
        }
        let max = self.random.pick(&[1, 4, 1000]);
        self.log.push(format!("share range {f} {from}..+{len} to {g} {to}, {max}"));
        self.saw(match (f == g, self.files[f].holder.family == self.files[g].holder.family) {
            (true, _) => "range within a file",
            (false, true) => "range within a family",
            (false, false) => "range between families",
        });
        let mut done = 0;
        loop {
            let mut tx = Transaction::new();
            let target = self.writable(g, &mut tx);
            let source =
                if f == g { target.clone() } else { Path::load(&self.maps, self.files[f].holder).unwrap() };
            let range =
                Range { from: (from + done) * BLOCK, to: (to + done) * BLOCK, len: (len - done) * BLOCK };
            let progress = share_range(&self.maps, &mut tx, &source, &target, range, max).unwrap();
            self.ended(progress.reserved_freed);
            self.apply(&tx);
            let next = done + progress.next / BLOCK;
            for block in done..next {
                let place =
                    self.files[f].blocks.get(&(from + block)).copied().filter(|at| *at < RESERVATIONS);
                let blocks = &mut self.files[g].blocks;
                match place {
                    Some(place) => drop(blocks.insert(to + block, place)),
                    None => drop(blocks.remove(&(to + block))),
                }
            }
            self.check();
            assert!(progress.more == (next < len) && next > done, "a step goes on");
            done = next;
            if !progress.more {
                break;
            }
        }
        if !self.maps.counted().is_empty() {
            self.saw("blocks named twice");
        }
    }
}
