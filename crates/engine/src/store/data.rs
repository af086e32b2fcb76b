//! Reading data, against the checksums that are kept of it.

use std::sync::Arc;

use varve_format::root::NodePtr;
use varve_format::{BLOCK_BYTES, PoolAddr, Run, block_checksum};

use super::{Result, Store};
use crate::EngineError;
use crate::checkpoint::checksums::{self, Found, SumPage};
use crate::planted::{Planted, is};
use crate::space::readers::Reading;

impl Store {
    /// The page behind `ptr`. Hold a [`Reading::of_page`] from when it was looked up until this returns.
    pub(crate) fn load_sums(&self, ptr: NodePtr) -> Result<Arc<SumPage>> {
        if let Some(page) = self.sum_cache.get(&checksums::key(ptr)) {
            return Ok(page);
        }
        let page = checksums::decode(&self.read_metadata(ptr, "checksum")?);
        self.sum_cache.insert(checksums::key(ptr), page.clone());
        Ok(page)
    }

    /// The checksums of `blocks` blocks from `first` on.
    pub(crate) fn checksums_of(&self, first: u64, blocks: u64) -> Result<Vec<u32>> {
        let mut sums = Vec::with_capacity(blocks as usize);
        let run = Run { addr: PoolAddr::from_block(first), blocks: blocks as u32 };
        for page in checksums::pages_of(run) {
            let mut reading = None;
            let found = {
                let core = self.core.lock();
                let found = core.sums.find(page, &self.sum_cache);
                if matches!(found, Found::OnDisk(_)) {
                    reading = Some(Reading::of_page(&self.readers));
                }
                found
            };
            let content = match found {
                Found::Page(p) => Some(p),
                Found::Zero => None,
                Found::OnDisk(ptr) => Some(self.load_sums(ptr)?),
            };
            drop(reading);
            let from = first.max(page * checksums::PAGE_BLOCKS);
            let to = (first + blocks).min((page + 1) * checksums::PAGE_BLOCKS);
            for block in from..to {
                sums.push(content.as_ref().map_or(0, |c| c[(block % checksums::PAGE_BLOCKS) as usize]));
            }
        }
        Ok(sums)
    }

    /// Reads blocks and verifies them. `buf` is aligned and a whole number of blocks. Hold the [`View`](crate::View) that gave
    /// the address until this returns.
    pub fn read_data(&self, addr: PoolAddr, buf: &mut [u8]) -> Result<()> {
        let first = addr.block();
        let blocks = (buf.len() / BLOCK_BYTES) as u64;
        if blocks == 0 || first + blocks > self.core.lock().space.total {
            return Err(EngineError::Refused(format!("address {:#x} lies outside the pool", addr.0)));
        }
        // Blocks that still ride with the log are in memory; asked first, since they may land meanwhile.
        let riding = self.riding(first, blocks);
        let from_device = |i: usize| riding.get(i).is_none_or(Option::is_none);
        if (0..blocks as usize).any(from_device) {
            let sums = self.checksums_of(first, blocks)?;
            let whole = self.pool.read_copy(addr, buf, 0);
            for i in 0..blocks as usize {
                let block = &mut buf[i * BLOCK_BYTES..(i + 1) * BLOCK_BYTES];
                let good = |b: &[u8]| block_checksum(b) == sums[i];
                if whole.is_err() && is(Planted::UnreadZeros) {
                    block.fill(0);
                } else if from_device(i) && !(whole.is_ok() && good(block)) {
                    let at = PoolAddr::from_block(first + i as u64);
                    self.pool.read_verified(&mut [at].into_iter(), block, self.repairs(), &good)?;
                }
            }
        }
        for (i, ride) in riding.into_iter().enumerate() {
            if let Some((data, at)) = ride {
                buf[i * BLOCK_BYTES..(i + 1) * BLOCK_BYTES].copy_from_slice(&data[at..at + BLOCK_BYTES]);
            }
        }
        Ok(())
    }
}
