//! Tests of the simulator, which must itself be right: crash images against a naive model, recordings and
//! logs of concurrent use, faults.

mod crash;
mod devices;
mod logs;

use varve_device::{AlignedBuf, Device};

use crate::{PAGE_BYTES, Rng};

/// A page whose every sector says which write (1 or more) and which sector of it it is.
fn stamped(write: u64, pages: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(pages * PAGE_BYTES);
    for (i, sector) in buf.chunks_mut(crate::SECTOR_BYTES).enumerate() {
        for (j, word) in sector.chunks_mut(8).enumerate() {
            word.copy_from_slice(&(write << 24 | (i as u64) << 8 | j as u64).to_le_bytes());
        }
    }
    buf
}

/// One random operation on a device: a group of writes, a single write, a flush.
fn random_step(device: &dyn Device, rng: &mut Rng, write: &mut u64) {
    use varve_device::Request;
    let pages = device.size_bytes() / PAGE_BYTES as u64;
    if rng.chance(0.25) {
        device.flush().unwrap();
        return;
    }
    let plan: Vec<(u64, AlignedBuf)> = (0..1 + rng.below(4))
        .map(|_| {
            *write += 1;
            let len = 1 + rng.below(3);
            (rng.below(pages - len) * PAGE_BYTES as u64, stamped(*write, len as usize))
        })
        .collect();
    let mut requests: Vec<_> =
        plan.iter().map(|(offset, buf)| Request::Write { offset: *offset, buf }).collect();
    device.run(&mut requests).into_iter().for_each(|result| result.unwrap());
}
