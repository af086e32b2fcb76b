//! Both ends of a conversation, over a socket that keeps messages apart as `/dev/fuse` does.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use varve_device::ALIGN_BYTES;
use zerocopy::{FromBytes, IntoBytes};

use super::WRITE_BYTES_MAX;
use super::abi::{self, InHeader, OutHeader, WriteIn, opcode};
use super::device::Device;
use super::inbox::Inbox;
use super::reply::Reply;
use super::request::Body;

/// The filesystem's end, and the one that plays the kernel.
fn ends() -> (Arc<Device>, OwnedFd) {
    let (ours, kernel) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    (Arc::new(Device::new(ours)), kernel)
}

/// What the kernel hears: number, error, bytes.
fn heard(kernel: &OwnedFd) -> (u64, i32, Vec<u8>) {
    let mut bytes = vec![0; 4096];
    let received = rustix::io::read(kernel, &mut bytes).unwrap();
    let (header, rest) = OutHeader::read_from_prefix(&bytes[..received]).unwrap();
    assert_eq!(header.len as usize, received);
    (header.unique, header.error, rest.to_vec())
}

fn heard_nothing(kernel: &OwnedFd) {
    let mut byte = [0];
    let flags = rustix::net::RecvFlags::DONTWAIT;
    assert_eq!(rustix::net::recv(kernel, &mut byte, flags).map(|_| ()), Err(Errno::AGAIN));
}

fn asks(kernel: &OwnedFd, code: u32, rest: &[u8]) {
    let len = (size_of::<InHeader>() + rest.len()) as u32;
    let header = InHeader { len, opcode: code, unique: 5, nodeid: abi::ROOT, ..InHeader::default() };
    let message = [header.as_bytes(), rest].concat();
    assert_eq!(rustix::net::send(kernel, &message, SendFlags::empty()).unwrap(), message.len());
}

// Goal: each way to answer says what it should, once. Method: each, and what arrives at the other end.
#[test]
fn answers() {
    let (device, kernel) = ends();
    let reply = || Reply::new(device.clone(), 77);
    reply().empty();
    assert_eq!(heard(&kernel), (77, 0, vec![]));
    reply().bytes(b"data");
    assert_eq!(heard(&kernel), (77, 0, b"data".to_vec()));
    reply().body(&abi::SizeOut { size: 3, padding: 0 });
    assert_eq!(heard(&kernel), (77, 0, 3u64.to_le_bytes().to_vec()));
    reply().error(Errno::NOENT);
    assert_eq!(heard(&kernel), (77, -2, vec![]));
    // The kernel would not take this number, and never hear of the request again.
    reply().error(Errno::from_raw_os_error(4000));
    assert_eq!(heard(&kernel), (77, -5, vec![]));
    reply().none();
    heard_nothing(&kernel);
}

// Goal: who is about to answer and does not has answered EIO. Method: a reply that is dropped, here, while a panic unwinds,
// and on another thread.
#[test]
fn unanswered_requests_answer_eio() {
    let (device, kernel) = ends();
    drop(Reply::new(device.clone(), 1));
    assert_eq!(heard(&kernel), (1, -5, vec![]));
    let reply = Reply::new(device.clone(), 2);
    let panics = catch_unwind(AssertUnwindSafe(move || {
        let _reply = reply;
        panic!("as planned");
    }));
    assert!(panics.is_err());
    assert_eq!(heard(&kernel), (2, -5, vec![]));
    let reply = Reply::new(device.clone(), 3);
    std::thread::spawn(move || drop(reply)).join().unwrap();
    assert_eq!(heard(&kernel), (3, -5, vec![]));
    heard_nothing(&kernel);
}

// Goal: what the kernel is told without having asked has its form. Method: both kinds.
#[test]
fn notifications() {
    let (device, kernel) = ends();
    device.forget_inode(9).unwrap();
    let inode = [9u64.to_ne_bytes(), [0; 8], [0; 8]].concat();
    assert_eq!(heard(&kernel), (0, abi::notify::INVAL_INODE, inode));
    device.forget_entry(9, b"abc").unwrap();
    let entry = [&9u64.to_ne_bytes()[..], &3u32.to_ne_bytes(), &[0; 4], b"abc\0"].concat();
    assert_eq!(heard(&kernel), (0, abi::notify::INVAL_ENTRY, entry));
}

// Goal: requests of any length arrive whole, and what a WRITE brings lies at a page's beginning, apart from the rest. Method:
// names and values of lengths around the border between the two parts, and writes of several lengths.
#[test]
fn requests_arrive_in_two_parts() {
    let (device, kernel) = ends();
    let mut inbox = Inbox::new();
    for len in [1, 38, 39, 40, 41, 255] {
        let name = vec![b'n'; len];
        asks(&kernel, opcode::LOOKUP, &[&name[..], &[0]].concat());
        assert!(inbox.receive(&device).unwrap());
        assert_eq!(inbox.header().unique, 5);
        let (Ok(Body::Lookup { name: arrived }), _) = inbox.parts(true) else { panic!("of {len} bytes") };
        assert_eq!(arrived, name);
    }
    for len in [0, 1, 4096, 65536] {
        let value = vec![b'v'; len];
        let head = abi::SetxattrIn { size: len as u32, flags: 0 };
        asks(&kernel, opcode::SETXATTR, &[head.as_bytes(), b"user.a\0", &value].concat());
        assert!(inbox.receive(&device).unwrap());
        let (Ok(Body::Setxattr { value: arrived, .. }), _) = inbox.parts(false) else {
            panic!("of {len} bytes")
        };
        assert!(arrived == value);
    }
    for len in [0, 1, 4096, 100_000] {
        let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let head = WriteIn { offset: 12288, size: len, ..WriteIn::default() };
        asks(&kernel, opcode::WRITE, &[head.as_bytes(), &data].concat());
        assert!(inbox.receive(&device).unwrap());
        let (Ok(Body::Write { offset: 12288, size, .. }), payload) = inbox.parts(true) else {
            panic!("{len}")
        };
        assert_eq!((size, payload.as_ptr().addr() % ALIGN_BYTES, payload.len()), (len, 0, WRITE_BYTES_MAX));
        assert!(payload[..len as usize] == data);
    }
}

// Goal: a payload shorter than it says is refused, and what is no request ends the thread's work without a panic. Method:
// each; then the other end goes away.
#[test]
fn what_is_no_request() {
    let (device, kernel) = ends();
    let mut inbox = Inbox::new();
    let head = WriteIn { size: 10, ..WriteIn::default() };
    asks(&kernel, opcode::WRITE, &[head.as_bytes(), &[1; 9]].concat());
    assert!(inbox.receive(&device).unwrap());
    assert_eq!(inbox.parts(true).0.unwrap_err(), Errno::IO);
    for len in [1, 39] {
        rustix::net::send(&kernel, &vec![1; len], SendFlags::empty()).unwrap();
        assert!(inbox.receive(&device).is_err());
    }
    drop(kernel);
    assert!(inbox.receive(&device).is_err());
}
