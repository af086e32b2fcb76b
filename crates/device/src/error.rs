//! What can go wrong with a device. Every error says the operation, the device and the place.
//!
//! Errors are cheap to clone (a failed flush is told to many waiters) and keep the OS error as a number
//! and a text. This crate knows the device's errno only; what a filesystem call answers is decided above.

use std::fmt;
use std::io;

/// What was being done to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Opening, creating or locking.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Flush,
    /// Discarding a range.
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// An operation, and where: opening and making durable are of the whole device.
fn attempt(operation: Operation, device: &str, offset: u64, len_bytes: u64) -> String {
    match operation {
        Operation::Open => format!("opening {device}"),
        Operation::Flush => format!("flush of {device}"),
        _ => format!("{operation} of {len_bytes} bytes at offset {offset} on {device}"),
    }
}

/// A failed device operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system or the device refused or failed the operation (EIO and its like).
    #[error("{} failed: {text}", attempt(*.operation, device, *.offset, *.len_bytes))]
    Io {
        /// What was being done.
        operation: Operation,
        /// The device's name.
        device: String,
        /// Byte offset; 0 for open and flush.
        offset: u64,
        /// Length in bytes; 0 for open and flush.
        len_bytes: u64,
        /// The OS error number, if there was one.
        errno: Option<i32>,
        /// The OS error in words.
        text: String,
    },
    /// Fewer bytes were transferred than asked for and no more will come: the device is shorter than it was.
    #[error(
        "short {operation} on {device}: {done_bytes} of {len_bytes} bytes at offset {offset}; the device has become shorter"
    )]
    Short {
        /// What was being done.
        operation: Operation,
        /// The device's name.
        device: String,
        /// Byte offset of the request.
        offset: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
        /// How many of them were transferred.
        done_bytes: u64,
    },
    /// The request lies (partly) beyond the end of the device. Nothing was transferred.
    #[error(
        "{operation} of {len_bytes} bytes at offset {offset} would not fit on {device} of {size_bytes} bytes"
    )]
    PastEnd {
        /// What was being done.
        operation: Operation,
        /// The device's name.
        device: String,
        /// Byte offset of the request.
        offset: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
        /// Usable size of the device in bytes.
        size_bytes: u64,
    },
    /// Offset, length or buffer address is not a multiple of [`crate::ALIGN_BYTES`]: a bug in the caller.
    #[error("{operation} of {len_bytes} bytes at offset {offset} on {device} is not aligned to 4096 bytes")]
    Misaligned {
        /// What was being done.
        operation: Operation,
        /// The device's name.
        device: String,
        /// Byte offset of the request.
        offset: u64,
        /// Length of the request in bytes.
        len_bytes: u64,
    },
    /// No permission, or the device was opened read-only.
    #[error("{operation} is not permitted on {device}: {text}")]
    NotPermitted {
        /// What was being done.
        operation: Operation,
        /// The device's name.
        device: String,
        /// Why.
        text: String,
    },
    /// There is no such file or device.
    #[error("{device} does not exist")]
    NotFound {
        /// The path asked for.
        device: String,
    },
    /// The file to create is there already.
    #[error("{device} exists already; nothing was changed")]
    AlreadyExists {
        /// The path asked for.
        device: String,
    },
    /// Somebody else has the device open. The text is a whole sentence that names the device and, where it
    /// can be found, the process.
    #[error("{0}")]
    LockedBy(String),
    /// The path is neither a regular file nor a block device, the backend asked for is not to be had, or the process may not write to
    /// all of the file (RLIMIT_FSIZE).
    #[error("{device} cannot be used: {text}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// Why.
        text: String,
    },
    /// The power of a simulated device is off. Real devices never answer this.
    #[error("{operation} on {device}: the power is off")]
    PoweredOff {
        /// What was being done.
        operation: Operation,
        /// The device's name.
        device: String,
    },
}

impl DeviceError {
    /// Wraps an OS error of an operation on `[offset, offset + len_bytes)` of `device`.
    #[must_use]
    pub fn from_os(
        operation: Operation,
        device: impl Into<String>,
        offset: u64,
        len_bytes: u64,
        error: &io::Error,
    ) -> Self {
        let device = device.into();
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotPermitted { operation, device, text: error.to_string() }
            }
            io::ErrorKind::NotFound if operation == Operation::Open => Self::NotFound { device },
            io::ErrorKind::AlreadyExists if operation == Operation::Open => Self::AlreadyExists { device },
            _ => Self::Io {
                operation,
                device,
                offset,
                len_bytes,
                errno: error.raw_os_error(),
                text: error.to_string(),
            },
        }
    }

    /// The OS error number behind this error, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { errno, .. } => *errno,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: an OS error keeps number, place and device. Method: wrap EIO, read the message.
    #[test]
    fn os_errors_say_what_and_where() {
        let error =
            DeviceError::from_os(Operation::Write, "disk", 8192, 4096, &io::Error::from_raw_os_error(5));
        assert_eq!(error.errno(), Some(5));
        let text = error.to_string();
        for part in ["write", "8192", "4096", "disk"] {
            assert!(text.contains(part), "{text}");
        }
        let open = DeviceError::from_os(Operation::Open, "disk", 0, 0, &io::Error::from_raw_os_error(5));
        assert!(open.to_string().starts_with("opening disk failed: "), "{open}");
        let missing = DeviceError::from_os(Operation::Open, "disk", 0, 0, &io::Error::from_raw_os_error(2));
        assert_eq!(missing, DeviceError::NotFound { device: "disk".into() });
    }
}
