//! Tests of the file device.
