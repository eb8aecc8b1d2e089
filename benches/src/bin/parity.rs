//! Parity: GB/s of data, of encoding and of reconstructing as many data columns as there is parity.
//!
//! `cargo run --release -p larder-benches --features isal --bin parity` measures ISA-L's
//! `ec_encode_data` in the same run; the ratios are ours over ISA-L's. For ISA-L, reconstructing `m`
//! columns from `k` is encoding with another matrix, so one figure stands for both.

use larder_benches::{gb_per_s, race};
use larder_pool::parity;
use std::time::Duration;

const ROUNDS: usize = 40;

fn main() {
    println!("GB/s of data; in parentheses the ratio to ISA-L");
    println!("column KiB  k+m   ISA-L      encode           lose 1 data      lose m data");
    for len in [64 << 10, 256 << 10, 1 << 20] {
        for k in [4, 8, 10, 16] {
            for m in 1..=3 {
                measure(k, m, len);
            }
        }
    }
}

fn measure(k: usize, m: usize, len: usize) {
    let (data, mut coded) = (Columns::new(k, len), Columns::new(m, len));
    let (mut found_one, mut found_all, mut coded_by_rival) =
        (Columns::new(1, len), Columns::new(m, len), Columns::new(m, len));
    let data = data.slices();
    parity::encode(&data, &mut coded.slices_mut());
    let stored = coded.clone();

    let mut coded = coded.slices_mut();
    let mut encode = || parity::encode(&data, &mut coded);
    let lose = |lost: usize, out: &mut [&mut [u8]]| {
        let row = data.iter().copied().chain(stored.slices()).enumerate();
        let present: Vec<_> = row.map(|(column, bytes)| (column >= lost).then_some(bytes)).collect();
        let want: Vec<usize> = (0..lost).collect();
        parity::reconstruct(k, m, &present, &want, out).expect("enough columns");
    };
    let (mut found_one, mut found_all) = (found_one.slices_mut(), found_all.slices_mut());
    let mut lose_one = || lose(1, &mut found_one);
    let mut lose_all = || lose(m, &mut found_all);
    let mut rival = rival::encoder(len, &data, coded_by_rival.slices_mut());
    let [rival, encode, lose_one, lose_all] =
        race(ROUNDS, [&mut rival, &mut encode, &mut lose_one, &mut lose_all]);
    assert_eq!(found_all, data[..m], "reconstruction is wrong");

    let rate = |time| gb_per_s(k * len, time);
    let cell = |time: Duration| match cfg!(feature = "isal") {
        true => format!("{:6.1} ({:4.2})", rate(time), rate(time) / rate(rival)),
        false => format!("{:6.1} ( -  )", rate(time)),
    };
    let isal = if cfg!(feature = "isal") { format!("{:6.1}", rate(rival)) } else { "     -".into() };
    println!(
        "{:10} {k:2}+{m}  {isal}   {}    {}    {}",
        len >> 10,
        cell(encode),
        cell(lose_one),
        cell(lose_all)
    );
}

/// Columns of equal length, one behind the other from a page boundary on, as a stripe lies in memory.
struct Columns {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Columns {
    fn new(count: usize, len: usize) -> Self {
        const PAGE: usize = 4096;
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..count * len + PAGE).map(|_| byte()).collect();
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start, len }
    }

    fn clone(&self) -> Self {
        let mut copy = Self::new(self.slices().len(), self.len);
        copy.slices_mut().iter_mut().zip(self.slices()).for_each(|(to, from)| to.copy_from_slice(from));
        copy
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.bytes[self.start..].chunks_exact(self.len).collect()
    }

    fn slices_mut(&mut self) -> Vec<&mut [u8]> {
        self.bytes[self.start..].chunks_exact_mut(self.len).collect()
    }
}

#[cfg(not(feature = "isal"))]
mod rival {
    /// Does nothing.
    pub fn encoder(_: usize, _: &[&[u8]], _: Vec<&mut [u8]>) -> impl FnMut() {
        || ()
    }
}

#[cfg(feature = "isal")]
mod rival {
    use std::ffi::{c_int, c_uchar};

    // From isa-l/erasure_code.h.
    unsafe extern "C" {
        fn gf_gen_rs_matrix(matrix: *mut c_uchar, rows: c_int, k: c_int);
        fn ec_init_tables(k: c_int, rows: c_int, matrix: *const c_uchar, tables: *mut c_uchar);
        fn ec_encode_data(
            len: c_int,
            k: c_int,
            rows: c_int,
            tables: *const c_uchar,
            data: *const *const c_uchar,
            coding: *const *mut c_uchar,
        );
    }

    /// Encodes `data` into `coding`, columns of `len` bytes.
    pub fn encoder<'a>(len: usize, data: &'a [&[u8]], coding: Vec<&'a mut [u8]>) -> impl FnMut() + 'a {
        assert!(data.iter().all(|column| column.len() == len));
        assert!(coding.iter().all(|column| column.len() == len));
        let (k, m) = (data.len(), coding.len());
        let mut matrix = vec![0; (k + m) * k];
        let mut tables = vec![0; 32 * k * m];
        // SAFETY: the matrix holds (k + m) · k bytes, the tables 32 bytes for each of k · m factors.
        unsafe {
            gf_gen_rs_matrix(matrix.as_mut_ptr(), (k + m) as c_int, k as c_int);
            ec_init_tables(k as c_int, m as c_int, matrix[k * k..].as_ptr(), tables.as_mut_ptr());
        }
        let data: Vec<_> = data.iter().map(|column| column.as_ptr()).collect();
        let coding: Vec<_> = coding.into_iter().map(<[u8]>::as_mut_ptr).collect();
        move || {
            // SAFETY: k data and m coding columns of `len` bytes, borrowed for as long as this closure lives.
            unsafe {
                ec_encode_data(
                    len as c_int,
                    k as c_int,
                    m as c_int,
                    tables.as_ptr(),
                    data.as_ptr(),
                    coding.as_ptr(),
                );
            }
        }
    }
}
