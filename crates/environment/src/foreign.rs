//! What programs of others say only in words: one file per program, with the texts that they really print. No other file of the
//! workspace knows them.

pub mod slurm;
pub(crate) mod ssh;
