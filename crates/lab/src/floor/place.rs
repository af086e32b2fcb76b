//! On which processors the caller and those who serve him run.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Where caller and server are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// On the same processor.
    Together,
    /// The caller on one, the servers on another.
    Apart,
}

impl Place {
    pub(super) const ALL: [Place; 2] = [Place::Together, Place::Apart];

    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Together => "one processor",
            Place::Apart => "two processors",
        }
    }

    /// Those that this process may use processors for.
    pub(super) fn here() -> Result<Vec<Place>> {
        let enough = if allowed(&sched_getaffinity(None)?).len() > 1 { 2 } else { 1 };
        Ok(Place::ALL[..enough].to_vec())
    }
}

fn allowed(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Puts this thread, and threads that it starts meanwhile, on a processor; when it is dropped this thread may run
/// anywhere again.
pub(super) struct Pinned {
    before: CpuSet,
    cpus: Vec<usize>,
}

impl Pinned {
    pub(super) fn new() -> Result<Pinned> {
        let before = sched_getaffinity(None).context("cannot ask which processors this may use")?;
        let cpus = allowed(&before);
        if cpus.is_empty() {
            bail!("this process may use no processor that the lab knows");
        }
        Ok(Pinned { before, cpus })
    }

    /// To where servers run, for starting them.
    pub(super) fn serve(&self, place: Place) -> Result<()> {
        self.put(match place {
            Place::Together => self.cpus[0],
            Place::Apart => self.cpus[1 % self.cpus.len()],
        })
    }

    /// To where the caller runs.
    pub(super) fn call(&self) -> Result<()> {
        self.put(self.cpus[0])
    }

    fn put(&self, cpu: usize) -> Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).with_context(|| format!("cannot run on processor {cpu}"))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.before) {
            crate::say(&format!("this thread stays on one processor: {error}"));
        }
    }
}
