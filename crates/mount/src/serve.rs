//! The threads that answer, from a mount's first request to its last.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::Verbs;
use crate::dispatch::{Adapter, Scratch};
use crate::kernel::device::Device;
use crate::kernel::inbox::Inbox;
use crate::kernel::reply::Reply;

/// Failures in a row to receive anything before a thread gives up, and how long it waits after each.
const FAILURES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Answers with one thread for each of these open files of the mount, until it is gone and nobody is being answered any
/// more. The error is the first of a thread that has given up; the others go on without it.
pub(crate) fn serve<V: Verbs>(adapter: Adapter<V>, devices: Vec<Arc<Device>>) -> io::Result<()> {
    let result = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(devices.len());
        for (number, device) in devices.into_iter().enumerate() {
            let adapter = &adapter;
            let answer = move || answer(adapter, &device);
            match thread::Builder::new().name(format!("fuse-{number}")).spawn_scoped(scope, answer) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(error) => tracing::error!("the mount is served by {number} threads only: {error}"),
            }
        }
        let panicked = |_| Err(io::Error::other("a thread that serves the mount panicked"));
        let mut result = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(panicked);
            result = result.and(ended);
        }
        result
    });
    adapter.end();
    result
}

fn answer<V: Verbs>(adapter: &Adapter<V>, device: &Arc<Device>) -> io::Result<()> {
    let (mut inbox, mut scratch) = (Inbox::new(), Scratch::default());
    let mut failed = 0;
    loop {
        match inbox.receive(device) {
            Ok(true) => failed = 0,
            Ok(false) => return Ok(()),
            // The kernel had no memory to hand a request over, and has ended it.
            Err(error) if is_passing(&error) && failed < FAILURES_MAX => {
                tracing::warn!("a request could not be received: {error}");
                failed += 1;
                thread::sleep(PAUSE);
                continue;
            }
            Err(error) => {
                tracing::error!("a thread that serves the mount gives up: {error}");
                return Err(error);
            }
        }
        let reply = Reply::new(device.clone(), inbox.header().unique);
        adapter.answer(&mut inbox, reply, &mut scratch);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOMEM | Errno::FAULT))
}
