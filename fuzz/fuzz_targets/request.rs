//! Requests of the kernel, taken apart: any bytes, as one piece and as a ring brings them. Nothing panics, or looks beyond their end.
#![no_main]

#[path = "../../crates/mount/src/kernel/abi.rs"]
#[expect(dead_code, reason = "requests are read here, answers are not written")]
mod abi;
#[path = "../../crates/mount/src/kernel/request.rs"]
#[expect(dead_code, reason = "what is done with a request is not")]
mod request;

use libfuzzer_sys::fuzz_target;
use request::{Body, HEAD_BYTES};

/// Bytes in front of every request.
const HEADER_BYTES: usize = size_of::<abi::InHeader>();
/// Kinds of requests: some more than there are.
const OPCODES: u32 = 64;

fuzz_target!(|input: &[u8]| {
    let [how, opcode, bytes @ ..] = input else { return };
    let ext = how & 1 != 0;
    // As it is; then with a header that is right.
    if let Some(header) = request::header(bytes, bytes.len()) {
        look(&header, &bytes[HEADER_BYTES..], usize::from(*how), ext);
    }
    let _ = request::header(bytes, usize::from(*how));
    let header = abi::InHeader {
        len: (HEADER_BYTES + bytes.len()) as u32,
        opcode: u32::from(*opcode) % OPCODES,
        nodeid: abi::ROOT,
        ..abi::InHeader::default()
    };
    look(&header, bytes, usize::from(*how), ext);
    // What stands in front of a payload is looked at alone.
    look(&header, &bytes[..bytes.len().min(HEAD_BYTES - HEADER_BYTES)], bytes.len(), ext);
});

fn look(header: &abi::InHeader, rest: &[u8], payload_bytes: usize, ext: bool) {
    assert!(request::op_bytes(header.opcode, ext) <= HEAD_BYTES.max(rest.len()) + 1024);
    let Ok(body) = request::body(header, rest, payload_bytes, ext) else { return };
    let _ = (body.verb(), body.changes(), body.of_others());
    let within = |bytes: &[u8]| assert!(bytes.len() <= rest.len());
    let name = |name: &[u8]| assert!((1..=255).contains(&name.len()) && !name.contains(&0));
    match body {
        Body::BatchForget { list } => {
            within(list);
            assert!(request::forgotten(list).count() <= rest.len() / 16);
        }
        Body::Write { size, .. } => assert!(size as usize <= payload_bytes),
        Body::Setxattr { name: of, value, .. } => {
            name(of);
            within(value);
        }
        Body::Ioctl { data, .. } => within(data),
        Body::Rename { name: of, new_name, .. } => {
            name(of);
            name(new_name);
        }
        Body::Symlink { name: of, target } => {
            name(of);
            within(target);
        }
        Body::Lookup { name: of }
        | Body::Mknod { name: of, .. }
        | Body::Mkdir { name: of, .. }
        | Body::Unlink { name: of }
        | Body::Rmdir { name: of }
        | Body::Link { name: of, .. }
        | Body::Create { name: of, .. }
        | Body::Getxattr { name: of, .. }
        | Body::Removexattr { name: of } => name(of),
        _ => {}
    }
}
