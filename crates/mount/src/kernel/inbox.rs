//! Where one thread receives requests.

use std::io;

use rustix::io::Errno;
use varve_device::AlignedBuf;
use zerocopy::FromBytes;

use super::WRITE_BYTES_MAX;
use super::abi::{InHeader, RingHead, opcode};
use super::device::Device;
use super::request::{self, Body, HEAD_BYTES};

/// Room kept for requests that are longer than usual; the longest attributes take 64 KiB.
const ROOM_KEPT: usize = 128 << 10;

/// One request at a time, in two parts.
pub struct Inbox {
    /// All of a request but a WRITE's payload.
    request: Vec<u8>,
    payload: AlignedBuf,
    header: InHeader,
    /// Bytes of payload in `payload`, if it is a WRITE.
    payload_bytes: usize,
}

impl Inbox {
    /// An empty one.
    pub fn new() -> Inbox {
        Inbox {
            request: vec![0; HEAD_BYTES],
            payload: AlignedBuf::new(WRITE_BYTES_MAX),
            header: InHeader::default(),
            payload_bytes: 0,
        }
    }

    /// Waits for a request. False: the mount is gone.
    pub fn receive(&mut self, device: &Device) -> io::Result<bool> {
        self.make_room();
        self.request.resize(HEAD_BYTES, 0);
        let payload = &mut self.payload[..WRITE_BYTES_MAX];
        let Some(received) = device.receive(&mut self.request, payload)? else { return Ok(false) };
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent what is no request");
        self.header = request::header(&self.request, received).ok_or_else(odd)?;
        let beyond = received.saturating_sub(HEAD_BYTES);
        self.request.truncate(received);
        self.payload_bytes = 0;
        if self.header.opcode == opcode::WRITE {
            self.payload_bytes = beyond;
        } else {
            self.request.extend_from_slice(&self.payload[..beyond]);
        }
        Ok(true)
    }

    /// Takes a request that came through a ring. `op_bytes`: how long the structure is that one of this kind begins with.
    pub fn put(
        &mut self,
        head: &RingHead,
        payload: &[u8],
        op_bytes: &impl Fn(u32) -> usize,
    ) -> io::Result<()> {
        self.make_room();
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent what is no request");
        let header = header_of(head);
        let op_bytes = op_bytes(header.opcode);
        // Of others nobody looks at what they begin with.
        if op_bytes > 0 && header.len as usize != size_of::<InHeader>() + op_bytes + payload.len() {
            return Err(odd());
        }
        self.header = header;
        self.request.clear();
        self.request.extend_from_slice(&head.in_out[..size_of::<InHeader>()]);
        self.request.extend_from_slice(head.op.get(..op_bytes).ok_or_else(odd)?);
        self.payload_bytes = 0;
        if header.opcode == opcode::WRITE {
            self.payload.get_mut(..payload.len()).ok_or_else(odd)?.copy_from_slice(payload);
            self.payload_bytes = payload.len();
        } else {
            self.request.extend_from_slice(payload);
        }
        Ok(())
    }

    fn make_room(&mut self) {
        if self.request.capacity() > ROOM_KEPT {
            self.request = Vec::new();
        }
        // Whoever took the last one has left another; never less than the kernel wants room for.
        if self.payload.len() < WRITE_BYTES_MAX {
            self.payload = AlignedBuf::new(WRITE_BYTES_MAX);
        }
    }

    /// In front of the request.
    pub fn header(&self) -> InHeader {
        self.header
    }

    /// What is asked for, and the buffer that holds a WRITE's payload from its first byte on.
    pub fn parts(&mut self, setxattr_ext: bool) -> (Result<Body<'_>, Errno>, &mut AlignedBuf) {
        let rest = &self.request[size_of::<InHeader>()..];
        (request::body(&self.header, rest, self.payload_bytes, setxattr_ext), &mut self.payload)
    }
}

/// In front of a request that came through a ring.
pub fn header_of(head: &RingHead) -> InHeader {
    InHeader::read_from_prefix(&head.in_out).map_or_else(|_| InHeader::default(), |(header, _)| header)
}
