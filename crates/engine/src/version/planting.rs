//! Errors that tests plant in a module, to see themselves fail. Outside tests nothing is planted, and asking costs nothing.

/// Makes `planted(what)` of the enum `$What`, and the list `PLANTED` for tests to set.
macro_rules! planting {
    ($What:ident) => {
        #[cfg(test)]
        thread_local! {
            static PLANTED: std::cell::Cell<&'static [$What]> = const { std::cell::Cell::new(&[]) };
        }

        /// Whether a test has planted this.
        #[cfg(test)]
        fn planted(what: $What) -> bool {
            PLANTED.get().contains(&what)
        }

        /// Outside tests nothing is planted.
        #[cfg(not(test))]
        const fn planted(_: $What) -> bool {
            false
        }
    };
}

pub(super) use planting;
