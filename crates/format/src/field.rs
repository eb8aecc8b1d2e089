//! Fixed-position structures, declared once: the same declaration gives the struct, its encoder, its
//! decoder and the field table that `SPEC.md` is checked against.

/// A value with a fixed size on disk.
pub trait Field: Sized {
    /// Bytes on disk.
    const SIZE: usize;
    /// Writes the value at the start of `out`, which holds at least [`Field::SIZE`] bytes.
    fn store(&self, out: &mut [u8]);
    /// Reads the value from the start of `from`, which holds at least [`Field::SIZE`] bytes.
    fn load(from: &[u8]) -> Self;
}

macro_rules! int_field {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const SIZE: usize = size_of::<$t>();
            fn store(&self, out: &mut [u8]) { out[..Self::SIZE].copy_from_slice(&self.to_le_bytes()); }
            fn load(from: &[u8]) -> Self {
                let mut bytes = [0; Self::SIZE];
                bytes.copy_from_slice(&from[..Self::SIZE]);
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}
int_field!(u8, u16, u32, u64, u128, i64);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;
    fn store(&self, out: &mut [u8]) {
        out[..N].copy_from_slice(self);
    }
    fn load(from: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&from[..N]);
        bytes
    }
}

/// One line of a structure's field table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldInfo {
    /// The field's name in code and in `SPEC.md`.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Bytes on disk.
    pub size: usize,
}

/// Declares a structure with fixed offsets.
///
/// `layout! { /// doc  pub struct Name[SIZE] { /// doc  field: Type = offset, … } }` gives the struct
/// with public fields, `SIZE`, `FIELDS`, `put(&self, &mut [u8])` and `get(&[u8]) -> Self`. Gaps are
/// reserved and written as zero. A compile-time check refuses overlaps and fields past the end.
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident[$size:expr] {
        $($(#[$fmeta:meta])* $field:ident : $ty:ty = $offset:expr),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }

        impl $name {
            /// Bytes on disk.
            pub const SIZE: usize = $size;
            /// The field table that `SPEC.md` is held against.
            pub const FIELDS: &'static [$crate::field::FieldInfo] = &[
                $($crate::field::FieldInfo {
                    name: stringify!($field),
                    offset: $offset,
                    size: <$ty as $crate::field::Field>::SIZE,
                }),*
            ];

            /// Writes the structure at the start of `out`; reserved bytes become zero.
            ///
            /// # Panics
            /// When `out` is shorter than [`Self::SIZE`].
            pub fn put(&self, out: &mut [u8]) {
                out[..Self::SIZE].fill(0);
                $($crate::field::Field::store(&self.$field, &mut out[$offset..]);)*
            }

            /// Reads the structure without checking it; `None` when `from` is too short.
            pub fn get(from: &[u8]) -> Option<Self> {
                if from.len() < Self::SIZE { return None; }
                Some(Self { $($field: <$ty as $crate::field::Field>::load(&from[$offset..])),* })
            }
        }

        const _: () = {
            let fields = $name::FIELDS;
            let mut at = 0;
            let mut i = 0;
            while i < fields.len() {
                assert!(fields[i].offset >= at, "fields overlap or are out of order");
                at = fields[i].offset + fields[i].size;
                i += 1;
            }
            assert!(at <= $size, "fields reach past the end");
        };
    };
}
