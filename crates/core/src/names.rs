//! Choices that have names: in files, in flags and in what is told.
//!
//! A choice is an enum; its names stand beside it, once, and whoever reads, writes or lists them asks there.

/// A choice among few, each with a name.
pub trait Named: Copy + 'static {
    /// The names, in the order they are listed.
    const NAMES: &'static [&'static str];

    /// Its name.
    fn name(self) -> &'static str;

    /// The one of that name.
    fn from_name(name: &str) -> Option<Self>;
}

/// Names the values of an enum, all of them.
#[macro_export]
macro_rules! named {
    ($choice:ident: $($value:ident = $name:literal),+ $(,)?) => {
        impl $choice {
            /// All of them, in the order they are listed.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// Their names.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name in files and flags.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }

            /// The one of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.name() == name)
            }
        }

        impl $crate::names::Named for $choice {
            const NAMES: &'static [&'static str] = $choice::NAMES;

            fn name(self) -> &'static str {
                $choice::name(self)
            }

            fn from_name(name: &str) -> Option<Self> {
                $choice::from_name(name)
            }
        }
    };
}
