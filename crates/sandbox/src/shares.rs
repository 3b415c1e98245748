//! What the cells of one session share: namespaces that the first of them made, as handles.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Handles of namespaces. They travel beside a message, which says by a number which of them there are.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The network that leads nowhere.
    pub network: Option<OwnedFd>,
    /// The user namespace that everything else belongs to, unless that is the machine's.
    pub users: Option<OwnedFd>,
    /// The mounts of the machine together with the layer over the home.
    pub mounts: Option<OwnedFd>,
}

impl Shares {
    /// As they came with a message; handles that are missing are not there.
    pub(crate) fn new(kinds: u8, descriptors: Vec<OwnedFd>) -> Self {
        let mut descriptors = descriptors.into_iter();
        let mut next = |kind: u8| if kinds & kind == 0 { None } else { descriptors.next() };
        Self { network: next(1), users: next(2), mounts: next(4) }
    }

    pub(crate) fn kinds(&self) -> u8 {
        u8::from(self.network.is_some()) | u8::from(self.users.is_some()) << 1 | u8::from(self.mounts.is_some()) << 2
    }

    /// To be sent.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.network.iter().chain(&self.users).chain(&self.mounts).map(AsFd::as_fd).collect()
    }

    /// The same, with these mounts.
    pub(crate) fn with_mounts(&self, mounts: Option<&OwnedFd>) -> std::io::Result<Self> {
        let copy = |handle: Option<&OwnedFd>| handle.map(OwnedFd::try_clone).transpose();
        Ok(Self { network: copy(self.network.as_ref())?, users: copy(self.users.as_ref())?, mounts: copy(mounts)? })
    }

    /// Takes over what a cell made. A network belongs to the users that it was made with.
    pub(crate) fn adopt(&mut self, made: Self) {
        match (&self.network, &self.users) {
            (None, None) => (self.network, self.users) = (made.network, made.users),
            (None, Some(_)) => self.network = made.network,
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Option<OwnedFd> {
        Some(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn shares_survive_the_way() {
        for kinds in 0..8_u8 {
            let some = |kind: u8| if kinds & kind == 0 { None } else { handle() };
            let shares = Shares { network: some(1), users: some(2), mounts: some(4) };
            assert_eq!(shares.kinds(), kinds);
            let count = shares.descriptors().len();
            let sent: Vec<OwnedFd> = (0..count).filter_map(|_| handle()).collect();
            assert_eq!(Shares::new(kinds, sent).kinds(), kinds);
        }
    }

    #[test]
    fn a_network_is_taken_with_its_users_only() {
        let mut shares = Shares { network: handle(), ..Shares::default() };
        shares.adopt(Shares { network: handle(), users: handle(), mounts: None });
        assert_eq!(shares.kinds(), 1);
        let mut shares = Shares::default();
        shares.adopt(Shares { users: handle(), ..Shares::default() });
        shares.adopt(Shares { network: handle(), users: handle(), mounts: None });
        assert_eq!(shares.kinds(), 3);
    }
}
