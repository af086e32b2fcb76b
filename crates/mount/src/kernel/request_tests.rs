use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::*;

const OPCODES: u32 = 60;

fn header(opcode: u32) -> InHeader {
    InHeader { opcode, nodeid: abi::ROOT, ..InHeader::default() }
}

fn parsed(opcode: u32, rest: &[u8]) -> Result<Body<'_>, Errno> {
    body(&header(opcode), rest, 0, true)
}

/// Every request that has something behind its header, whole.
fn examples() -> Vec<(u32, Vec<u8>)> {
    let with = |fixed: &[u8], more: &[u8]| [fixed, more].concat();
    let name = b"name\0";
    vec![
        (opcode::LOOKUP, name.to_vec()),
        (opcode::BATCH_FORGET, with(abi::BatchForgetIn { count: 2, padding: 0 }.as_bytes(), &[7; 32])),
        (opcode::SETATTR, vec![1; 88]),
        (opcode::STATX, vec![0; 24]),
        (opcode::SYMLINK, b"name\0target\0".to_vec()),
        (opcode::MKNOD, with(&[0; 16], name)),
        (opcode::MKDIR, with(&[0; 8], name)),
        (opcode::UNLINK, name.to_vec()),
        (opcode::RMDIR, name.to_vec()),
        (opcode::RENAME, with(&[3; 8], b"name\0other\0")),
        (opcode::RENAME2, with(&[3; 16], b"name\0other\0")),
        (opcode::LINK, with(&[3; 8], name)),
        (opcode::OPEN, vec![0; 8]),
        (opcode::CREATE, with(&[0; 16], name)),
        (opcode::TMPFILE, vec![0; 16]),
        (opcode::READ, vec![0; 40]),
        (opcode::WRITE, vec![0; 40]),
        (
            opcode::SETXATTR,
            with(abi::SetxattrIn { size: 5, flags: 1 }.as_bytes(), b"\x01\0\0\0\0\0\0\0name\0value"),
        ),
        (opcode::GETXATTR, with(&[0; 8], name)),
        (opcode::LISTXATTR, vec![0; 8]),
        (opcode::REMOVEXATTR, name.to_vec()),
        (opcode::READDIR, vec![0; 40]),
        (opcode::READDIRPLUS, vec![0; 40]),
        (opcode::FALLOCATE, vec![0; 32]),
        (opcode::LSEEK, vec![0; 24]),
        (opcode::COPY_FILE_RANGE, vec![0; 56]),
    ]
}

// Goal: a request that is whole is understood, and one that has lost anything of its end is refused. Method: each request,
// and each beginning of it.
#[test]
fn requests_that_are_cut_short_are_refused() {
    for (opcode, bytes) in examples() {
        let body = parsed(opcode, &bytes).unwrap_or_else(|errno| panic!("{opcode}: {errno}"));
        assert_ne!(body.verb(), "a request of another kind");
        for len in 0..bytes.len() {
            assert!(parsed(opcode, &bytes[..len]).is_err(), "{opcode} of {len} bytes");
        }
    }
}

// Goal: what comes through a ring is what would have come in one piece. Method: each request in one piece, and with the structure
// it begins with apart from the rest, as the kernel does it.
#[test]
fn requests_through_rings_are_the_same() {
    let mut inbox = crate::kernel::inbox::Inbox::new();
    for (opcode, bytes) in examples() {
        let whole = format!("{:?}", parsed(opcode, &bytes));
        let head_bytes = op_bytes(opcode, true);
        let mut head = abi::RingHead::new_zeroed();
        let length = (40 + bytes.len()) as u32;
        head.in_out[..40].copy_from_slice(InHeader { len: length, ..header(opcode) }.as_bytes());
        head.op[..head_bytes].copy_from_slice(&bytes[..head_bytes]);
        // What the kernel does not use is as the last request left it.
        head.op[head_bytes..].fill(0xee);
        inbox.put(&head, &bytes[head_bytes..], &|asked| op_bytes(asked, true)).unwrap();
        assert_eq!(format!("{:?}", inbox.parts(true).0), whole, "{opcode}");
    }
    // A payload goes where that of a WRITE belongs.
    let write = abi::WriteIn { size: 5000, ..abi::WriteIn::default() };
    let mut head = abi::RingHead::new_zeroed();
    let arrived = InHeader { len: 40 + 40 + 5000, ..header(opcode::WRITE) };
    head.in_out[..40].copy_from_slice(arrived.as_bytes());
    head.op[..40].copy_from_slice(write.as_bytes());
    inbox.put(&head, &[7; 5000], &|asked| op_bytes(asked, true)).unwrap();
    let (body, payload) = inbox.parts(true);
    assert!(matches!(body, Ok(Body::Write { size: 5000, .. })));
    assert!(payload[..5000] == [7; 5000] && payload[5000] == 0);
    // Lengths must agree.
    assert!(inbox.put(&head, &[7; 4999], &|asked| op_bytes(asked, true)).is_err());
}

// Goal: each field comes from its place. Method: what the examples and some more hold.
#[test]
fn fields() {
    assert!(matches!(parsed(opcode::LOOKUP, b"n\0more"), Ok(Body::Lookup { name: b"n" })));
    assert!(matches!(
        parsed(opcode::SYMLINK, b"n\0there/it is\0"),
        Ok(Body::Symlink { name: b"n", target: b"there/it is" })
    ));
    let rename = [abi::Rename2In { new_parent: 9, flags: 2, padding: 0 }.as_bytes(), b"a\0b\0"].concat();
    assert!(matches!(
        parsed(opcode::RENAME2, &rename),
        Ok(Body::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 2 })
    ));
    let set = [abi::SetxattrIn { size: 2, flags: 1 }.as_bytes(), b"user.a\0vvv"].concat();
    assert!(matches!(
        body(&header(opcode::SETXATTR), &set, 0, false),
        Ok(Body::Setxattr { name: b"user.a", value: b"vv", flags: 1, acl_flags: None })
    ));
    let forget =
        [abi::BatchForgetIn { count: 2, padding: 0 }.as_bytes(), [5u64, 1, 6, 1].as_bytes()].concat();
    let Ok(Body::BatchForget { list }) = parsed(opcode::BATCH_FORGET, &forget) else {
        panic!("not understood")
    };
    assert_eq!(forgotten(list).collect::<Vec<_>>(), [(5, 1), (6, 1)]);
    let write = abi::WriteIn { offset: 4096, size: 10, write_flags: 4, ..abi::WriteIn::default() };
    let parsed_write = |payload| body(&header(opcode::WRITE), write.as_bytes(), payload, true).map(|_| ());
    assert_eq!((parsed_write(9), parsed_write(10)), (Err(Errno::IO), Ok(())));
}

// Goal: names that the filesystem could not stand never get there. Method: one that is empty, one too long, one without its
// end; places in files beyond what is signed.
#[test]
fn names_and_places() {
    let long = |len| [vec![b'n'; len], vec![0]].concat();
    assert!(parsed(opcode::LOOKUP, &long(255)).is_ok());
    for (bytes, errno) in
        [(long(256), Errno::NAMETOOLONG), (long(0), Errno::INVAL), (vec![b'n'; 20], Errno::IO)]
    {
        assert_eq!(parsed(opcode::LOOKUP, &bytes).unwrap_err(), errno);
        assert_eq!(parsed(opcode::MKDIR, &[vec![0; 8], bytes].concat()).unwrap_err(), errno);
    }
    let read = abi::ReadIn { offset: 1 << 63, ..abi::ReadIn::default() };
    assert_eq!(parsed(opcode::READ, read.as_bytes()).unwrap_err(), Errno::INVAL);
}

// Goal: the length that a header states must be that of what was received. Method: one byte more and less, and no header.
#[test]
fn lengths_must_agree() {
    let bytes = InHeader { len: 60, ..header(opcode::LOOKUP) }.as_bytes().to_vec();
    assert!(super::header(&bytes, 60).is_some());
    assert!(super::header(&bytes, 59).is_none() && super::header(&bytes, 61).is_none());
    for len in 0..40 {
        assert!(super::header(&bytes[..len], len).is_none());
    }
}

proptest! {
    // Goal: no bytes make this panic or look beyond their end. Method: random ones, for each kind of request.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), payload in 0usize..2000, ext: bool) {
        let _ = super::header(&bytes, payload);
        for opcode in 0..OPCODES {
            if let Ok(Body::BatchForget { list }) = body(&header(opcode), &bytes, payload, ext) {
                prop_assert!(forgotten(list).count() <= bytes.len() / 16);
            }
        }
    }

    // Goal: nor do requests that are nearly right. Method: whole ones with one byte changed.
    #[test]
    fn a_changed_byte_never_panics(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte: u8) {
        let examples = examples();
        let (opcode, mut bytes) = examples[which.index(examples.len())].clone();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = parsed(opcode, &bytes);
    }
}
