//! What can go wrong below the filesystem.

use varve_device::DeviceError;
use varve_format::Corrupt;

/// An error of the engine. Its text says what was being done, to what, and what happens next.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// There is no room, and nothing that could be done now would make any.
    #[error("no space left in the pool")]
    NoSpace,
    /// Something on disk is not what the format says, in all of its copies.
    #[error("{what} is corrupt: {why}")]
    Corrupt {
        /// What was being read.
        what: String,
        /// What is wrong with it.
        why: Corrupt,
    },
    /// Every copy of a block fails its checksum.
    #[error("block {addr:#x} of the pool fails its checksum in every copy")]
    Checksum {
        /// Pool address.
        addr: u64,
    },
    /// The device failed a request.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A write or flush failed earlier. Nothing more is accepted until the pool is opened again.
    #[error("the pool has stopped accepting writes: {0}; unmount it, look at the device, and open it again")]
    Stopped(String),
    /// The pool was opened read-only.
    #[error("the pool is open read-only")]
    ReadOnly,
    /// The pool cannot be opened, and why, in a sentence that says what to do.
    #[error("{0}")]
    Refused(String),
    /// What is on the device is no pool, and what it is, in a whole sentence.
    #[error("{0}")]
    NoPool(String),
}

impl EngineError {
    /// A [`EngineError::Corrupt`] for `what`.
    pub fn corrupt(what: impl Into<String>, why: Corrupt) -> Self {
        EngineError::Corrupt { what: what.into(), why }
    }

    /// The same, of damage that keeps a pool from being opened for writing and from nothing else; `met` says when.
    pub(crate) fn for_writers_alone(self, met: &str) -> Self {
        match self {
            EngineError::Corrupt { what, why } => {
                let what = format!(
                    "while {met} (opened for reading only, the pool shows what can be had of it; a check says what is lost): {what}"
                );
                EngineError::Corrupt { what, why }
            }
            error => error,
        }
    }

    /// Whether a device has failed, perhaps for a moment: what is there is not known, and is no worse than before.
    pub fn may_pass(&self) -> bool {
        matches!(self, EngineError::Device(_))
    }

    /// Whether this is about one thing that cannot be read, while the pool as a whole goes on.
    pub fn is_damage(&self) -> bool {
        matches!(self, EngineError::Corrupt { .. } | EngineError::Checksum { .. } | EngineError::Device(_))
    }
}
