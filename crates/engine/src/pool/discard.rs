//! Discards: every copy of a run of blocks.

use varve_device::Discarded;
use varve_format::Run;

use super::{Pool, Result};

impl Pool {
    /// Tells the devices that nobody needs what is in `run`. If one of them cannot do that, that is the answer.
    pub fn discard(&self, run: Run) -> Result<Discarded> {
        for piece in self.pieces(run.addr, run.bytes() as usize) {
            for stripe in &piece.chunk.stripes {
                let len_bytes = (piece.to - piece.from) as u64;
                let device = &self.devices[stripe.device as usize];
                if device.discard(stripe.offset + piece.delta, len_bytes)? == Discarded::NotSupported {
                    return Ok(Discarded::NotSupported);
                }
            }
        }
        Ok(Discarded::Done)
    }
}
