//! Files and block devices.
