//! Checks of a request before it is issued: alignment, bounds. The same for every device, so that a
//! program that works on memory also works on direct I/O.

use crate::error::Operation;
use crate::{ALIGN_BYTES, DeviceError, Request};

impl Request<'_> {
    /// Byte offset on the device.
    #[must_use]
    pub fn offset(&self) -> u64 {
        match self {
            Self::Read { offset, .. } | Self::Write { offset, .. } => *offset,
        }
    }

    /// The bytes to write, or the buffer to fill as it is now.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Read { buf, .. } => buf,
            Self::Write { buf, .. } => buf,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Read or write.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Read { .. } => Operation::Read,
            Self::Write { .. } => Operation::Write,
        }
    }

    /// Refuses a request that is not aligned ([`DeviceError::Misaligned`]) or does not fit on a device of
    /// `size_bytes` ([`DeviceError::PastEnd`]). `device` is asked for the name only on failure.
    pub fn check(&self, size_bytes: u64, device: impl FnOnce() -> String) -> Result<(), DeviceError> {
        let aligned = self.bytes().as_ptr().addr().is_multiple_of(ALIGN_BYTES) || self.bytes().is_empty();
        if !aligned {
            return Err(DeviceError::Misaligned {
                operation: self.operation(),
                device: device(),
                offset: self.offset(),
                len_bytes: self.len_bytes(),
            });
        }
        check_range(self.operation(), self.offset(), self.len_bytes(), size_bytes, device)
    }
}

/// Refuses a range that is not aligned or does not fit on a device of `size_bytes`. For implementors of
/// [`crate::Device`].
pub fn check_range(
    operation: Operation,
    offset: u64,
    len_bytes: u64,
    size_bytes: u64,
    device: impl FnOnce() -> String,
) -> Result<(), DeviceError> {
    let align = ALIGN_BYTES as u64;
    if !offset.is_multiple_of(align) || !len_bytes.is_multiple_of(align) {
        return Err(DeviceError::Misaligned { operation, device: device(), offset, len_bytes });
    }
    if offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
        return Err(DeviceError::PastEnd { operation, device: device(), offset, len_bytes, size_bytes });
    }
    Ok(())
}
