//! Space that is set aside, in the model: each reserved block has a number, and who has the same number shares its space.

use std::collections::BTreeMap;

use varve_format::TreeId;
use varve_format::record::extent;

use super::world::World;
use super::*;

impl World {
    /// Takes it out of the books.
    pub(super) fn ended(&mut self, freed: Unreserved) {
        self.reserved -= freed.blocks;
        self.reserved_extents += freed.extents;
    }

    /// How many blocks are reserved, by what is stored, and in how many extents.
    pub(super) fn stored_reservations(&self) -> (u64, i64) {
        let extents = self.maps.trees.iter().filter(|((tree, _), _)| *tree == TreeId::EXTENTS.0);
        let extents = extents.map(|((_, key), value)| extent::decode_entry(key, value).unwrap().1);
        let reserved = extents.filter(|extent| extent.kind == ExtentKind::Reserved);
        let books =
            |(blocks, extents), extent: extent::Extent| (blocks + u64::from(extent.len) / BLOCK, extents + 1);
        reserved.fold((0, 0), books)
    }

    pub(super) fn reserve(&mut self, f: usize) {
        let from = self.some_block();
        let to = from + self.some_length();
        self.log.push(format!("reserve {f} {from}..{to}"));
        let mut tx = Transaction::new();
        let path = self.writable(f, &mut tx);
        let done = reserve(&self.maps, &mut tx, &path, from * BLOCK, to * BLOCK, 5000).unwrap();
        assert!(!done.more);
        self.apply(&tx);
        self.reserved += done.blocks;
        self.ended(done.reserved_freed);
        let mut missing = done.blocks;
        for block in from..to {
            let here = self.files[f].blocks.get(&block).copied();
            // A hole gets one, and so does what others see too; what nobody else sees may.
            let shared = here.is_some_and(|here| {
                let mut others = self.files.iter().enumerate().filter(|(g, _)| *g != f);
                here >= RESERVATIONS && others.any(|(_, other)| other.blocks.get(&block) == Some(&here))
            });
            if shared {
                self.saw("reserved for itself what others see");
            }
            if here.is_none() || shared {
                self.next_reservation += 1;
                self.files[f].blocks.insert(block, self.next_reservation);
                missing = missing.checked_sub(1).expect("it said that it has reserved less");
            }
        }
        let anew = (from..to).filter(|block| self.files[f].blocks[block] >= RESERVATIONS).count() as u64;
        assert!(missing <= anew, "it said that it has reserved more");
    }

    /// Takes the space that is reserved in a range, whoever sees it too.
    pub(super) fn spend(&mut self, f: usize) {
        let (mut from, mut to) = (self.some_block(), 0);
        // Where something is, mostly.
        let reserved: Vec<u64> = self.files[f]
            .blocks
            .iter()
            .filter(|(_, at)| **at >= RESERVATIONS)
            .map(|(block, _)| *block)
            .collect();
        if !reserved.is_empty() && self.random.below(4) > 0 {
            from = self.random.pick(&reserved).saturating_sub(self.random.below(2));
        }
        to = to.max(from + self.some_length());
        let max = self.random.pick(&[1, 4, 1000]);
        self.log.push(format!("spend {f} {from}..{to} {max}"));
        let mut at = from * BLOCK;
        loop {
            let mut tx = Transaction::new();
            let path = self.writable(f, &mut tx);
            let progress = spend_reserved(&self.maps, &mut tx, &path, at, to * BLOCK, max).unwrap();
            self.ended(progress.reserved_freed);
            self.apply(&tx);
            let range = at / BLOCK..progress.next / BLOCK;
            let gone: BTreeMap<u64, u64> = self.files[f]
                .blocks
                .range(range)
                .map(|(b, at)| (*b, *at))
                .filter(|(_, at)| *at >= RESERVATIONS)
                .collect();
            assert!(progress.reserved_freed.blocks >= gone.len() as u64, "the first who writes has it");
            for g in 0..self.files.len() {
                let before = self.files[g].blocks.len();
                self.files[g].blocks.retain(|block, at| gone.get(block) != Some(at));
                if g != f && self.files[g].blocks.len() < before {
                    self.saw("spent what others saw");
                }
            }
            at = progress.next;
            self.check();
            if !progress.more {
                assert_eq!(at, to * BLOCK);
                break;
            }
        }
    }
}
