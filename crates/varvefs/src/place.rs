//! Where a pool lies: a regular file, a block device, or memory.

use std::path::Path;
use std::sync::Arc;

use crate::error::Fault;

/// Opens what is at `path`.
pub(crate) fn open(path: &Path, read_only: bool) -> Result<Arc<dyn varve_device::Device>, Fault> {
    let mode = if read_only { varve_device::OpenMode::ReadOnly } else { varve_device::OpenMode::ReadWrite };
    Ok(Arc::new(varve_device::FileDevice::open(path, mode)?))
}
