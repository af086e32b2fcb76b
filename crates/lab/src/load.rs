//! The load generator of the file experiments: threads that create, write, sync and close files in one directory.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::guard;
use crate::target::Target;

/// How long and how much.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Threads.
    pub threads: usize,
    /// Size of each file.
    pub file_bytes: usize,
    /// No file is begun after this.
    pub duration: Duration,
    /// Nor when there are so many in all (each thread makes at least one).
    pub files_max: usize,
}

/// What a load did.
#[derive(Clone, Debug)]
pub struct Done {
    /// Files made by each thread; [`remove`] finds them again.
    pub files: Vec<usize>,
    /// From the common start to the end of the last thread.
    pub elapsed: Duration,
}

impl Done {
    /// Files in all.
    #[must_use]
    pub fn files_count(&self) -> usize {
        self.files.iter().sum()
    }

    /// Files per second.
    #[must_use]
    pub fn files_per_s(&self) -> f64 {
        self.files_count() as f64 / self.elapsed.as_secs_f64()
    }
}

fn path(directory: &str, thread: usize, file: usize) -> String {
    format!("{directory}/{thread:02}-{file:08}")
}

/// Runs a load in `directory`, which is there and empty.
pub fn synced_files(target: &dyn Target, directory: &str, load: Load) -> Result<Done> {
    let start = Barrier::new(load.threads + 1);
    let each_max = load.files_max.div_ceil(load.threads);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..load.threads)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || -> Result<(usize, Instant, Instant)> {
                    let mut bytes: Vec<u8> = (0..load.file_bytes).map(|i| (i * 31 + thread) as u8).collect();
                    start.wait();
                    let begun = Instant::now();
                    let until = begun + load.duration;
                    let mut made = 0;
                    while made == 0 || (made < each_max && Instant::now() < until && !guard::interrupted()) {
                        bytes[..8].copy_from_slice(&(made as u64).to_le_bytes());
                        target.write_synced(&path(directory, thread, made), &bytes)?;
                        made += 1;
                    }
                    Ok((made, begun, Instant::now()))
                })
            })
            .collect();
        start.wait();
        let mut files = Vec::with_capacity(load.threads);
        // From when the first began: who watches may get a processor only when some files have been made.
        let mut times: Option<(Instant, Instant)> = None;
        for worker in workers {
            let (made, begun, ended) =
                worker.join().map_err(|_| anyhow!("a thread of the load panicked"))??;
            files.push(made);
            times = Some(times.map_or((begun, ended), |(first, last)| (first.min(begun), last.max(ended))));
        }
        let elapsed = times.map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first));
        let done = Done { files, elapsed };
        guard::check()?;
        Ok(done)
    })
}

/// Removes what a load made.
pub fn remove(target: &dyn Target, directory: &str, done: &Done) -> Result<()> {
    for (thread, made) in done.files.iter().enumerate() {
        for file in 0..*made {
            target.remove(&path(directory, thread, file))?;
        }
    }
    Ok(())
}
