//! `varve inspect`: what is on a pool's device, part by part. Reads only, takes no lock, and so works on a mounted pool
//! and on a damaged one.
//!
//! Lookups (inodes, paths, trees) show the last checkpoint with the log after it applied, which is what the next
//! opening starts from. On a mounted pool what has not been committed yet is not on the device and not shown.

mod doc;
mod lookup;
mod records;
mod state;
mod versions;

use anyhow::{Result, anyhow, bail};
use varve_format::batch::{self, OpRef};
use varve_format::root::RootBlock;
use varve_format::superblock::{Label, Superblock};
use varve_format::{BLOCK_BYTES, PoolAddr, TreeId, block_checksum};

use self::doc::{Doc, map};
use self::state::{Disk, Entries, Node, State, look};
use crate::args::{InspectArgs, InspectWhat};
use crate::{Outcome, Usage, show};

/// Extents, attributes and operations shown of one thing.
const LISTED_MAX: usize = 1000;

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<Outcome> {
    let looks_up = matches!(
        args.what,
        Some(InspectWhat::Tree { .. } | InspectWhat::Inode { .. } | InspectWhat::Path { .. })
    );
    if args.checkpoint && !looks_up {
        let text =
            "--checkpoint is for tree, inode and path, which show the log applied without it; leave it away";
        return Err(Usage(text.to_owned()).into());
    }
    let disk = Disk::open(&args.pool)?;
    let with_log = !args.checkpoint;
    let look = |question: &dyn Fn(&State<'_>) -> Result<Doc>| look(&disk, with_log, question);
    let doc = match &args.what {
        None => look(&|state| Ok(overview(state)))?,
        Some(InspectWhat::Superblock) => superblocks(&disk)?,
        Some(InspectWhat::Ring { batch }) => look(&|state| ring(state, *batch))?,
        Some(InspectWhat::Roots) => look(&|state| Ok(roots(&state.root)))?,
        Some(InspectWhat::Tree { name, from, limit }) => {
            let (tree, from) = (tree_of(name)?, parse_hex(from)?);
            look(&|state| tree_entries(state, tree, &from, *limit))?
        }
        Some(InspectWhat::Node { addr }) => look(&|state| block(state, PoolAddr(*addr)))?,
        Some(InspectWhat::Inode { number, subvolume }) => {
            look(&|state| lookup::inode_of(state, *number, subvolume.as_deref()))?
        }
        Some(InspectWhat::Path { path }) => look(&|state| lookup::path_of(state, path))?,
    };
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&doc)?))?;
    } else {
        show(&doc.describe())?;
    }
    Ok(Outcome::Done)
}

fn tree_of(name: &str) -> Result<TreeId> {
    TreeId::ALL.into_iter().find(|tree| tree.name() == name).ok_or_else(|| {
        let names: Vec<&str> = TreeId::ALL.into_iter().map(TreeId::name).collect();
        Usage(format!("there is no tree {name:?}; the trees are {}", names.join(", "))).into()
    })
}

fn parse_hex(text: &str) -> Result<Vec<u8>> {
    let wrong = || Usage(format!("--from takes the beginning of a key in hexadecimal digits, not {text:?}"));
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(wrong().into());
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong().into()))
        .collect()
}

fn overview(state: &State<'_>) -> Doc {
    let superblock = &state.superblock;
    let last = state.batches.last().map(|batch| batch.header);
    map! {
        "pool_id": Doc::hex(&superblock.pool_id),
        "clean": superblock.closed && state.batches.is_empty(),
        "generation": superblock.generation,
        "data_profile": records::profile(superblock.data),
        "metadata_profile": records::profile(superblock.metadata),
        "devices_count": superblock.device_count,
        "size_bytes": state.label.size_bytes,
        "ring_bytes": state.label.ring_bytes,
        "checkpoint_position": superblock.position.0,
        "log_batches_count": state.batches.len(),
        "log_bytes": state.batches.iter().map(|batch| batch.bytes.len() as u64).sum::<u64>(),
        "log_position": last.map_or(superblock.position.0, |header| header.last.0),
        "epoch": superblock.epoch,
        "trees": tree_roots(&state.root),
    }
}

fn label_doc(label: &Label) -> Doc {
    map! {
        "version": label.version, "pool_id": Doc::hex(&label.pool_id), "device_id": Doc::hex(&label.device_id),
        "device_index": label.device_index, "size_bytes": label.size_bytes, "ring_bytes": label.ring_bytes,
    }
}

fn superblock_doc(superblock: &Superblock) -> Doc {
    let cuts: Vec<Doc> = superblock
        .cuts
        .iter()
        .map(|cut| map! { "epoch": cut.epoch, "last_batch": cut.last_sequence })
        .collect();
    let chunks: Vec<Doc> = superblock
        .chunks
        .iter()
        .map(|chunk| {
            let stripes: Vec<Doc> = chunk
                .stripes
                .iter()
                .map(|stripe| Doc::Text(format!("{}:{:#x}", stripe.device, stripe.offset)))
                .collect();
            map! {
                "start": Doc::address(chunk.start), "len_bytes": chunk.len_bytes, "kind": chunk.kind,
                "profile": records::profile(chunk.profile), "stripes": stripes,
            }
        })
        .collect();
    map! {
        "generation": superblock.generation,
        "pool_id": Doc::hex(&superblock.pool_id),
        "closed": superblock.closed,
        "incompatible_features": Doc::address(superblock.incompatible),
        "read_only_compatible_features": Doc::address(superblock.read_only_compatible),
        "compatible_features": Doc::address(superblock.compatible),
        "hash_kind": superblock.hash_kind,
        "data_profile": records::profile(superblock.data),
        "metadata_profile": records::profile(superblock.metadata),
        "devices_count": superblock.device_count,
        "total_blocks": superblock.total_blocks,
        "position": superblock.position.0,
        "root": records::pointer(&superblock.root),
        "log_start": superblock.log_start,
        "log_batch": superblock.log_sequence,
        "log_previous_checksum": Doc::address(u64::from(superblock.log_previous)),
        "epoch": superblock.epoch,
        "cuts": cuts,
        "chunks": chunks,
    }
}

fn superblocks(disk: &Disk) -> Result<Doc> {
    let labels = disk.labels();
    let slots = disk.slots()?;
    let newest = slots.iter().filter_map(|(_, slot)| slot.as_ref().ok()).max_by_key(|slot| slot.generation);
    let labels: Vec<Doc> = labels
        .iter()
        .map(|(offset, label)| {
            let mut doc = map! { "offset": Doc::address(*offset), "valid": label.is_ok() };
            doc.extend(match label {
                Ok(label) => label_doc(label),
                Err(problem) => map! { "problem": problem.clone() },
            });
            doc
        })
        .collect();
    let listed: Vec<Doc> = slots
        .iter()
        .enumerate()
        .map(|(index, (offset, slot))| {
            let state = match slot {
                Ok(_) => "valid".to_owned(),
                Err(problem) => problem.clone(),
            };
            let slot = slot.as_ref().ok();
            map! {
                "slot": index, "offset": Doc::address(*offset), "state": state,
                "generation": slot.map(|slot| slot.generation), "position": slot.map(|slot| slot.position.0),
                "closed": slot.map(|slot| slot.closed),
            }
        })
        .collect();
    Ok(map! { "labels": labels, "slots": listed, "newest": newest.map(superblock_doc) })
}

fn ring(state: &State<'_>, wanted: Option<u64>) -> Result<Doc> {
    if let Some(wanted) = wanted {
        let batch = state.batches.iter().find(|batch| batch.header.sequence == wanted);
        let batch = batch.ok_or_else(|| {
            let have = match (state.batches.first(), state.batches.last()) {
                (Some(first), Some(last)) => {
                    format!("it has {} to {}", first.header.sequence, last.header.sequence)
                }
                _ => "it has none".to_owned(),
            };
            anyhow!("the log after the last checkpoint has no batch {wanted}; {have}")
        })?;
        let (mut ops, mut count) = (Vec::new(), 0u64);
        batch::for_each_op(batch.payload(), state.superblock.total_blocks, |position, op| {
            count += 1;
            if ops.len() < LISTED_MAX {
                ops.push(op_doc(position.0, op));
            }
        })
        .map_err(|corrupt| anyhow!("batch {wanted}: {corrupt}"))?;
        let mut doc = batch_doc(state, batch);
        doc.extend(map! { "operations_count": count, "operations": ops });
        return Ok(doc);
    }
    let superblock = &state.superblock;
    let batches: Vec<Doc> = state.batches.iter().map(|batch| batch_doc(state, batch)).collect();
    let used: u64 = state.batches.iter().map(|batch| batch.bytes.len() as u64).sum();
    Ok(map! {
        "ring_bytes": state.label.ring_bytes,
        "used_bytes": used,
        "epoch": superblock.epoch,
        "cuts_count": superblock.cuts.len(),
        "start": superblock.log_start,
        "checkpoint_position": superblock.position.0,
        "batches_count": state.batches.len(),
        "batches": batches,
    })
}

fn batch_doc(state: &State<'_>, batch: &state::Batch) -> Doc {
    let header = &batch.header;
    map! {
        "batch": header.sequence,
        "epoch": header.epoch,
        "ring_offset": batch.position % state.label.ring_bytes,
        "len_bytes": batch.bytes.len(),
        "transactions_count": header.transactions,
        "first_position": header.first.0,
        "last_position": header.last.0,
        "flushed_batch": header.flushed,
        "superblock_generation": header.superblock_generation,
    }
}

fn op_doc(position: u64, op: OpRef<'_>) -> Doc {
    let mut doc = map! { "position": position };
    doc.extend(match op {
        OpRef::Put(tree, key, value) => {
            let mut doc = map! { "operation": "put", "tree": tree.name() };
            doc.extend(records::entry(tree, key, value));
            doc
        }
        OpRef::Delete(tree, key) => {
            map! { "operation": "delete", "tree": tree.name(), "key": Doc::hex(key) }
        }
        OpRef::Place(run, _) => {
            map! { "operation": "place", "addr": Doc::address(run.addr.0), "blocks": run.blocks }
        }
        OpRef::Free(run) => {
            map! { "operation": "free", "addr": Doc::address(run.addr.0), "blocks": run.blocks }
        }
        OpRef::IdFloor(floor) => map! { "operation": "id_floor", "floor": floor },
    });
    doc
}

fn tree_roots(root: &RootBlock) -> Vec<Doc> {
    root.trees
        .iter()
        .map(|tree| {
            let addrs: Vec<Doc> = tree.ptr.copies().map(|addr| Doc::address(addr.0)).collect();
            map! {
                "tree": tree.tree.name(), "id": tree.tree.0, "height": tree.height, "birth": tree.ptr.birth,
                "addrs": addrs,
            }
        })
        .collect()
}

fn roots(root: &RootBlock) -> Doc {
    map! {
        "position": root.position.0,
        "generation": root.generation,
        "next_id": root.next_id,
        "trees": tree_roots(root),
        "checksums": map! { "pages": root.checksums.pages, "root": records::pointer(&root.checksums.ptr) },
        "bitmap": map! { "pages": root.bitmap.pages, "root": records::pointer(&root.bitmap.ptr) },
    }
}

fn tree_entries(state: &State<'_>, tree: TreeId, from: &[u8], limit: usize) -> Result<Doc> {
    let (mut entries, mut next) = (Vec::new(), None);
    state.scan(tree, from, &mut |key, value| {
        if entries.len() == limit {
            next = Some(Doc::hex(key));
            return false;
        }
        entries.push(records::entry(tree, key, value));
        true
    })?;
    Ok(map! { "tree": tree.name(), "next_key": next, "entries": entries })
}

/// Whatever lies at an address.
fn block(state: &State<'_>, addr: PoolAddr) -> Result<Doc> {
    if !addr.0.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(Usage(format!(
            "{:#x} is no address of a block: blocks begin at multiples of {BLOCK_BYTES}",
            addr.0
        ))
        .into());
    }
    let places = state.places(addr);
    if places.is_empty() {
        bail!("{:#x} lies outside the pool, which has {} blocks", addr.0, state.superblock.total_blocks);
    }
    let mut copies = Vec::new();
    for place in places {
        let bytes = state.disk.read(place, BLOCK_BYTES)?;
        let mut doc = map! {
            "device_offset": Doc::address(place),
            "checksum": Doc::address(u64::from(block_checksum(&bytes))),
        };
        doc.extend(block_doc(&bytes));
        copies.push(doc);
    }
    Ok(map! { "addr": Doc::address(addr.0), "copies": copies })
}

fn block_doc(bytes: &[u8]) -> Doc {
    if let Ok(node) = Node::decode(bytes) {
        let header = node.header;
        let entries: Vec<Doc> = node
            .entries
            .iter()
            .map(|(key, value)| match (header.level, state::pointer(value)) {
                (0, _) => records::entry(header.tree, key, value),
                (_, Ok(ptr)) => {
                    let addrs: Vec<Doc> = ptr.copies().map(|addr| Doc::address(addr.0)).collect();
                    map! {
                        "key": Doc::hex(key), "addrs": addrs, "birth": ptr.birth,
                        "checksum": Doc::address(u64::from(ptr.checksum)),
                    }
                }
                (_, Err(error)) => map! { "key": Doc::hex(key), "problem": error.to_string() },
            })
            .collect();
        return map! {
            "holds": "node", "tree": header.tree.name(), "level": header.level, "birth": header.birth,
            "entries_count": entries.len(), "entries": entries,
        };
    }
    if let Ok(root) = RootBlock::decode(bytes) {
        let mut doc = map! { "holds": "root" };
        doc.extend(roots(&root));
        return doc;
    }
    map! { "holds": if bytes.iter().all(|byte| *byte == 0) { "zeros" } else { "data or an array page" } }
}
