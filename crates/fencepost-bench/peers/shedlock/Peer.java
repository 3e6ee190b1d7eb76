// A worker of the bench: ShedLock's JdbcTemplateLockProvider, with the time of the database. It never waits: a task asks again.
//
// usage: java Peer postgresql|mariadb KIND URL TASKS MILLIS HOLD_MS THINK_MS

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.URI;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;

public final class Peer {
    private static final Duration TTL = Duration.ofSeconds(30);
    /** The pause between two attempts. */
    private static final int PAUSE_MS = 10;
    /** As many as an application has, and as the contended bench has waiters. */
    private static final int CONNECTIONS = 16;

    private static final class Lock implements Worker.Lock {
        private final JdbcTemplateLockProvider provider;
        private final String name;
        private SimpleLock held;

        Lock(JdbcTemplateLockProvider provider, String name) {
            this.provider = provider;
            this.name = name;
        }

        public void acquire() throws Exception {
            while (true) {
                Optional<SimpleLock> lock =
                        provider.lock(new LockConfiguration(Instant.now(), name, TTL, Duration.ZERO));
                if (lock.isPresent()) {
                    held = lock.get();
                    return;
                }
                Thread.sleep(PAUSE_MS);
            }
        }

        public void release() {
            held.unlock();
        }
    }

    private static HikariDataSource pool(String database, URI place) {
        boolean postgres = database.equals("postgresql");
        String schema = postgres ? "&currentSchema=" + schema(place) : "";
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl("jdbc:" + database + "://" + place.getHost() + ":" + place.getPort() + place.getPath()
                + "?user=" + place.getUserInfo() + schema);
        config.setMaximumPoolSize(CONNECTIONS);
        return new HikariDataSource(config);
    }

    private static String schema(URI place) {
        return place.getQuery().substring("namespace=".length());
    }

    private static void prepare(String database, URI place, JdbcTemplate template) {
        String time = database.equals("postgresql") ? "TIMESTAMP" : "TIMESTAMP(3)";
        String table = "CREATE TABLE IF NOT EXISTS shedlock (name VARCHAR(64) PRIMARY KEY, lock_until " + time
                + " NOT NULL, locked_at " + time + " NOT NULL, locked_by VARCHAR(255) NOT NULL)";
        if (database.equals("postgresql")) {
            // Several workers that create the same at the same time would fail.
            table = "DO $$ BEGIN PERFORM pg_advisory_xact_lock(2); CREATE SCHEMA IF NOT EXISTS " + schema(place) + "; "
                    + table + "; END $$";
        }
        template.execute(table);
    }

    public static void main(String[] words) throws Exception {
        URI place = URI.create(words[2]);
        try (HikariDataSource pool = pool(words[0], place)) {
            JdbcTemplate template = new JdbcTemplate(pool);
            prepare(words[0], place, template);
            JdbcTemplateLockProvider provider =
                    new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                            .withJdbcTemplate(template)
                            .usingDbTime()
                            .build());
            Worker.work(words, name -> new Lock(provider, name));
        }
    }
}
