//! The program itself, mounted: real tools, kills, costs counted by the block layer, refusals.
//!
//! Nothing here looks inside: a test runs `varve` as a user would and believes only what the kernel and other
//! programs say. Everything a test makes lies in a scratch directory of its own and is gone afterwards, also when
//! the test fails. Where /dev/fuse cannot be opened each test says loudly that it was skipped.
//!
//! Sizes: small by default; `VARVE_TEST_FULL=1` (`cargo xtask test --full`) is the size the figures in docs/status.md
//! come from, `VARVE_TEST_FILES` and `VARVE_TEST_KILLS` set one of them alone.

mod answers;
mod backup;
mod copies;
mod cost;
mod crash;
mod directory;
mod durable;
mod elsewhere;
mod flags;
mod forks;
mod frozen;
mod full;
mod harness;
mod helper;
mod json;
mod lab;
mod look;
mod lost;
mod mapped;
mod messages;
mod names;
mod namespaces;
mod overlay;
mod postgres;
mod real;
mod refuse;
mod remount;
mod resume;
mod rings;
mod scale;
mod signals;
mod space;
mod transfer;
mod tree;
mod trim;
mod twice;
mod user;
mod views;
