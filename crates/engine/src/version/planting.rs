//! Errors that tests plant in a module, to see themselves fail. Outside tests nothing is planted, and asking costs nothing.
//!
//! The module's own tests plant any of them; the control of the crash suite plants those that [`crate::planted`] knows
//! by the same name.

/// Makes `planted(what)` of the enum `$What`, and the list `PLANTED` for tests to set. The crash suite's control has the
/// errors named.
macro_rules! planting {
    ($What:ident: $($shared:ident),*) => {
        #[cfg(test)]
        thread_local! {
            static PLANTED: std::cell::Cell<&'static [$What]> = const { std::cell::Cell::new(&[]) };
        }

        /// Whether a test has planted this.
        #[cfg(test)]
        fn planted(what: $What) -> bool {
            PLANTED.get().contains(&what)
        }

        /// Whether the control has planted this.
        #[cfg(all(not(test), feature = "planted"))]
        fn planted(what: $What) -> bool {
            match what {
                $($What::$shared => crate::planted::is(crate::planted::Planted::$shared),)*
                _ => false,
            }
        }

        /// Outside tests nothing is planted.
        #[cfg(not(any(test, feature = "planted")))]
        const fn planted(_: $What) -> bool {
            false
        }
    };
}

pub(crate) use planting;
