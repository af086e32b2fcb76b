//! `varve create`: a new, empty pool.
//!
//! Nothing that is there is overwritten without `--force`: the engine knows the signatures of others, a pool is known by its
//! superblocks too, and a regular file must be empty or full of zeros besides, from end to end. A file made
//! here has its name when the pool in it is whole.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::Serialize;
use varve_device::{Device, DeviceError, FileDevice, FileOptions, OpenMode};
use varve_fs::{Caller, Filesystem, FormatOptions, Profile};

use crate::args::CreateArgs;
use crate::clock::SystemClock;
use crate::names::Shown;
use crate::pool::{POOL_BYTES_MIN, explain, open_device, with_name};
use crate::size::show_size;
use crate::{Outcome, Usage, log, show, tell};

/// How much of a file is read at once in the search for something that is not zero, in bytes.
const PROBE_BYTES: u64 = 1 << 20;

/// What was made.
#[derive(Serialize)]
struct Created {
    pool: String,
    pool_id: String,
    size_bytes: u64,
    data_profile: &'static str,
    metadata_profile: &'static str,
}

/// Runs the command.
pub fn run(args: &CreateArgs) -> Result<Outcome> {
    if !args.devices.is_empty() {
        return Err(Usage(
            "pools of several devices are not built yet; give one file or block device".to_owned(),
        )
        .into());
    }
    log::start_for_writer();
    let created = create(args)?;
    if let Some(sentence) = outgrown(&args.pool) {
        tell(&format!("varve create: {sentence}"));
    }
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&created)?))?;
    } else {
        show(&format!(
            "created a pool of {} in {} (data {}, metadata {}, id {})\n",
            show_size(created.size_bytes),
            created.pool,
            created.data_profile,
            created.metadata_profile,
            created.pool_id
        ))?;
    }
    Ok(Outcome::Done)
}

/// What to say of a pool's file that cannot grow to its size where it is.
fn outgrown(pool: &Path) -> Option<String> {
    let metadata = pool.metadata().ok().filter(|metadata| metadata.is_file())?;
    let missing = metadata.len().saturating_sub(metadata.blocks() * 512);
    let host = rustix::fs::statvfs(pool).ok()?;
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    (missing > free).then(|| {
        format!(
            "{} grows as it is filled, by up to {}, and the filesystem that holds it has {} free: when that is used up, the pool \
             cannot be written to",
            pool.shown(),
            show_size(missing),
            show_size(free)
        )
    })
}

/// Makes a sparse file of `size_bytes` with an empty pool in it, for `varve mount --create`.
pub fn create_file(pool: &Path, size_bytes: u64) -> Result<()> {
    let args = CreateArgs {
        pool: pool.to_path_buf(),
        devices: Vec::new(),
        size: Some(size_bytes),
        data: Profile::Single,
        metadata: Profile::Dup,
        force: false,
        json: false,
    };
    create(&args).map(|_| ())
}

fn create(args: &CreateArgs) -> Result<Created> {
    let path = &args.pool;
    let shown = path.shown();
    if let Some(size) = args.size
        && size < POOL_BYTES_MIN
    {
        return Err(Usage(format!(
            "{} is too small for a pool; give --size {} or more",
            show_size(size),
            show_size(POOL_BYTES_MIN).replace(" MiB", "M")
        ))
        .into());
    }
    let existing = path.metadata().ok();
    let device = match (&existing, args.size) {
        (None, None) => {
            bail!("{shown} does not exist; give --size SIZE to make it as a file, such as --size 10G")
        }
        (None, Some(size_bytes)) => return create_new(args, size_bytes),
        (Some(metadata), None) if metadata.is_file() && metadata.len() == 0 => {
            bail!("{shown} is empty; give --size SIZE to make a pool of it, such as --size 10G")
        }
        (Some(metadata), size) => {
            if metadata.is_file() && !args.force {
                refuse_content(path)?;
            }
            open_existing(path, metadata, size, args.force)?
        }
    };
    format(args, Arc::new(device))
}

/// Makes the file too. It has its name when the pool in it is whole: a command that is killed leaves nothing under it.
fn create_new(args: &CreateArgs, size_bytes: u64) -> Result<Created> {
    let path = &args.pool;
    // Over what a command that was killed has left behind.
    let args = &CreateArgs { force: true, ..args.clone() };
    let mut created = None;
    let made = FileDevice::create_whole(path, size_bytes, |device| {
        created = Some(format(args, device).map_err(Unmade::Pool)?);
        Ok(())
    });
    made.map_err(|error| match error {
        Unmade::File(error) => explain(path, OpenMode::Create { size_bytes }, &error),
        Unmade::Pool(error) => error,
    })?;
    Ok(created.expect("it was made"))
}

/// Why there is no new pool.
enum Unmade {
    File(DeviceError),
    Pool(anyhow::Error),
}

impl From<DeviceError> for Unmade {
    fn from(error: DeviceError) -> Unmade {
        Unmade::File(error)
    }
}

/// A size cut down to whole blocks.
fn whole(size_bytes: u64) -> u64 {
    size_bytes - size_bytes % varve_device::ALIGN_BYTES as u64
}

/// Opens what is there, giving it the size asked for if that destroys nothing.
fn open_existing(
    path: &Path,
    metadata: &std::fs::Metadata,
    size: Option<u64>,
    force: bool,
) -> Result<FileDevice> {
    let shown = path.shown();
    let is_block_device = metadata.file_type().is_block_device();
    if !metadata.is_file() && !is_block_device {
        bail!("{shown} is neither a regular file nor a block device: no pool can be made of it");
    }
    let Some(size_bytes) = size.map(whole) else {
        return open_device(path, OpenMode::ReadWrite);
    };
    if is_block_device {
        bail!("{shown} is a block device and has the size it has; leave out --size");
    }
    let present_bytes = metadata.len();
    if present_bytes == size_bytes {
        return open_device(path, OpenMode::ReadWrite);
    }
    if present_bytes > 0 && !force {
        bail!(
            "{shown} is there already and has {}; leave out --size to use it as it is, or give --force to resize it",
            show_size(present_bytes)
        );
    }
    let options = FileOptions { reuse_existing: true, ..FileOptions::from_env() };
    let mode = OpenMode::Create { size_bytes };
    FileDevice::open_with(path, mode, options).map_err(|error| explain(path, mode, &error))
}

/// Refuses a regular file in which something is written. If it is something that the engine knows, its sentence is
/// better than ours: it looks through a device that cannot be written.
fn refuse_content(path: &Path) -> Result<()> {
    let Some(at) = first_content(path)? else { return Ok(()) };
    let shown = path.shown();
    let device = open_device(path, OpenMode::ReadOnly)?;
    if device.size_bytes() >= POOL_BYTES_MIN {
        let options = format_options(Profile::Single, Profile::Single, false)?;
        let devices: [Arc<dyn Device>; 1] = [Arc::new(device)];
        if let Err(error) = Filesystem::format(&devices, &options, Caller::ROOT, &SystemClock) {
            let sentence = error.to_string();
            if sentence.contains("--force") {
                bail!("{}", with_name(path, &sentence));
            }
        }
    }
    bail!("{shown} is not empty: something is written at byte {at}; give --force to overwrite it")
}

/// The first byte that is not zero. Holes are passed over, so that a large sparse file takes no time.
fn first_content(path: &Path) -> Result<Option<u64>> {
    let cannot_read = || format!("cannot read {}", path.shown());
    let file = File::open(path).with_context(cannot_read)?;
    let len = file.metadata().with_context(cannot_read)?.len();
    let mut buffer = vec![0; PROBE_BYTES.min(len) as usize];
    let mut offset = 0;
    while offset < len {
        match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
            Ok(data) => offset = data.max(offset),
            Err(Errno::NXIO) => return Ok(None),
            // A filesystem that does not know holes: all of it is read.
            Err(_) => {}
        }
        let piece = &mut buffer[..PROBE_BYTES.min(len.saturating_sub(offset)) as usize];
        file.read_exact_at(piece, offset).with_context(cannot_read)?;
        if let Some(at) = piece.iter().position(|byte| *byte != 0) {
            return Ok(Some(offset + at as u64));
        }
        offset += piece.len() as u64;
    }
    Ok(None)
}

fn format(args: &CreateArgs, device: Arc<FileDevice>) -> Result<Created> {
    let path = &args.pool;
    let size_bytes = device.size_bytes();
    if size_bytes < POOL_BYTES_MIN {
        bail!(
            "{} has {}, and the smallest pool has {}",
            path.shown(),
            show_size(size_bytes),
            show_size(POOL_BYTES_MIN)
        );
    }
    let options = format_options(args.data, args.metadata, args.force)?;
    let owner = Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    let devices: [Arc<dyn Device>; 1] = [device];
    Filesystem::format(&devices, &options, owner, &SystemClock)
        .map_err(|error| anyhow!("{}", with_name(path, &error.to_string())))?;
    Ok(Created {
        pool: path.shown(),
        pool_id: options.pool_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        size_bytes,
        data_profile: profile_name(args.data),
        metadata_profile: profile_name(args.metadata),
    })
}

pub fn format_options(data: Profile, metadata: Profile, force: bool) -> Result<FormatOptions> {
    let mut pool_id = [0; 16];
    let mut hash_seed = [0; 8];
    let source = "/dev/urandom";
    let mut random = File::open(source).with_context(|| format!("cannot open {source}"))?;
    random
        .read_exact(&mut pool_id)
        .and_then(|()| random.read_exact(&mut hash_seed))
        .with_context(|| format!("cannot read {source}"))?;
    Ok(FormatOptions { data, metadata, pool_id, hash_seed: u64::from_le_bytes(hash_seed), force })
}

fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::Single => "single",
        Profile::Dup => "dup",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: whatever is in a file is found, wherever it is, and zeros are nothing. Method: sparse files with one byte at
    // several places, zeros that were written, nothing at all.
    #[test]
    fn content_is_found_wherever_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let len = 100 << 20;
        for at in [0, (1 << 20) - 1, 2 << 20, (50 << 20) + 12345, len - 1] {
            let file = File::create(&path).expect("a file");
            file.set_len(len).expect("a sparse file");
            file.write_all_at(&[0; 8192], (3 << 20) - 4096).expect("there is room");
            assert_eq!(first_content(&path).expect("it can be read"), None);
            file.write_all_at(&[1], at).expect("there is room");
            assert_eq!(first_content(&path).expect("it can be read"), Some(at));
        }
        File::create(&path).expect("a file");
        assert_eq!(first_content(&path).expect("it can be read"), None);
    }
}
