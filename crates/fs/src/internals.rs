//! What tests in another package look at: of each module what is public in it.

use crate::FsError;
pub use crate::bounds::lower as lower_bounds;
pub use crate::door::Inside;

pub type Result<T> = std::result::Result<T, FsError>;

pub mod acl {
    pub use crate::acl::*;
}
pub mod api {
    pub use crate::api::*;
}
pub mod check {
    pub use crate::check::*;
}
pub mod core {
    pub use crate::core::*;
}
pub mod hash {
    pub use crate::hash::*;
}
pub mod inode {
    pub use crate::inode::*;
}
pub mod open {
    pub use crate::open::*;
}
pub mod reaper {
    pub use crate::reaper::*;
}
pub mod subvolume {
    pub use crate::subvolume::*;
}
pub mod table {
    pub use crate::table::*;
}
pub mod writeback {
    pub use crate::writeback::*;
}
pub mod ops {
    pub use crate::ops::*;
}
