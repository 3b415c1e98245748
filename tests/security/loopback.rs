//! A sandbox without network still has a loopback: its session's own, and nobody else's.

use std::net::{TcpListener, TcpStream};

use outpost_testkit::bench::with;
use serde_json::json;

use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::Ground;

/// Answers every connection on both loopback addresses with the same words, and says when it is ready.
const SERVER: &str = r#"exec perl -MSocket -e '
    $| = 1;
    for my $at ([AF_INET, pack_sockaddr_in(8123, inet_aton("127.0.0.1"))],
                [AF_INET6, pack_sockaddr_in6(8123, Socket::inet_pton(AF_INET6, "::1"))]) {
        socket(my $listener, $at->[0], SOCK_STREAM, 0) or die "socket: $!";
        bind($listener, $at->[1]) or die "bind: $!";
        listen($listener, 5) or die "listen: $!";
        next if fork;
        while (accept(my $client, $listener)) { syswrite $client, "served\n"; close $client }
        exit;
    }
    print "ready\n";
    sleep 600'"#;

/// Prints what a server at an address says, or why there is none.
fn client(port: u16) -> String {
    format!(
        r#"perl -MSocket -e '
        for my $at ([AF_INET, pack_sockaddr_in({port}, inet_aton("127.0.0.1"))],
                    [AF_INET6, pack_sockaddr_in6({port}, Socket::inet_pton(AF_INET6, "::1"))]) {{
            socket(my $link, $at->[0], SOCK_STREAM, 0) or print("socket: $!\n"), next;
            connect($link, $at->[1]) or print("connect: $!\n"), next;
            print scalar <$link>;
        }}'"#
    )
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn a_server_is_reached_by_the_next_command_of_its_session(who: Who) {
        let ground = Ground::new(who);
        let (mut one, mut other) = (ground.client().await, ground.client().await);
        one.start(with(ground.shell("server", SERVER), json!({"sandbox": ground.workspace_write()}))).await;
        let ready = one.until(|message| message["method"] == "process/output" && message["params"]["processId"] == "server").await;
        assert!(ready.to_string().contains("cmVhZHkK"), "{ready}");
        let served = (0, "served\nserved\n".to_owned());
        assert_eq!(ground.run(&mut one, &ground.workspace_write(), &client(8123)).await, served);
        // Another policy is another sandbox, with the same network.
        assert_eq!(ground.run(&mut one, &ground.read_only(), &client(8123)).await, served);
        let refused = (0, "connect: Connection refused\nconnect: Connection refused\n".to_owned());
        // Another session has another network, and so has the machine.
        assert_eq!(ground.run(&mut other, &ground.workspace_write(), &client(8123)).await, refused);
        assert!(TcpStream::connect(("127.0.0.1", 8123)).is_err());
    }

    #[needs(MOUNTS)]
    async fn the_machines_loopback_stays_closed(who: Who) {
        let ground = Ground::new(who);
        let mut one = ground.client().await;
        let machine = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = machine.local_addr().unwrap().port();
        let refused = (0, "connect: Connection refused\nconnect: Connection refused\n".to_owned());
        assert_eq!(ground.run(&mut one, &ground.workspace_write(), &client(port)).await, refused);
        let (code, devices) = ground.run(&mut one, &ground.read_only(), "cut -d: -f1 /proc/net/dev | tail -n +3").await;
        assert_eq!((code, devices.trim()), (0, "lo"));
    }
}
